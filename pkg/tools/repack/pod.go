// SPDX-License-Identifier: Apache-2.0

package repack

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/resource"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// pod uses devices of the driver.
type pod struct {
	object *corev1.Pod
	on     *node
	uses   []packing.Use
	needs  []need
	demand int // number
	// where is the number of the set of nodes that admit the pod.
	where  int
	budget string
	// kept is why the pod is not advised; empty if it may be.
	kept    Reason
	message string
	moved   bool
}

func (p *pod) name() string { return p.object.Namespace + "/" + p.object.Name }

// size is that of the pod's devices, in placement units.
func (p *pod) size() int {
	sum := 0
	for _, u := range p.uses {
		sum += p.on.state.Model().Devices[u.Device].Size
	}
	return sum
}

// refuse notes why a pod is not advised.
func (p *pod) refuse(reason Reason, format string, args ...any) {
	p.kept, p.message = reason, fmt.Sprintf(format, args...)
}

// needsOf are the requests of a pod except for devices of classes, in order of names.
func needsOf(p *corev1.Pod, served func(corev1.ResourceName) bool) []need {
	all := []need{{corev1.ResourcePods, 1000}}
	for name, q := range resource.PodRequests(p, resource.PodResourcesOptions{}) {
		if strings.Contains(string(name), "/") && served(name) && p.Status.ExtendedResourceClaimStatus != nil {
			continue
		}
		if amount := q.MilliValue(); amount > 0 {
			all = append(all, need{name, amount})
		}
	}
	slices.SortFunc(all, func(a, b need) int { return cmp.Compare(a.resource, b.resource) })
	return all
}

// Annotations by which a pod asks not to be disturbed, with the value that does; empty for any.
var doNotDisrupt = []struct{ key, value string }{
	{"karpenter.sh/do-not-disrupt", "true"},
	{"cluster-autoscaler.kubernetes.io/safe-to-evict", "false"},
	{"descheduler.alpha.kubernetes.io/prefer-no-eviction", ""},
	{v1alpha1.RepackKey, v1alpha1.RepackNever},
}

// judge finds out whether a pod may be advised, and what its replacement asks for.
func (c *Cluster) judge(p *pod) pools.Demand {
	for _, check := range []func(*pod){c.checkController, c.checkMarks, c.checkClaims, c.checkShares} {
		if check(p); p.kept != "" {
			return pools.Demand{}
		}
	}
	demand, err := c.demandOf(p.object)
	if err != nil {
		p.refuse(Unpredictable, "%v", err)
	}
	return demand
}

// checkController looks for a controller that creates the pod again, elsewhere.
func (c *Cluster) checkController(p *pod) {
	owner := metav1.GetControllerOf(p.object)
	switch {
	case p.object.DeletionTimestamp != nil:
		p.refuse(Ending, "it is being deleted")
	case owner == nil:
		p.refuse(NoController, "no controller would create it again")
	case owner.Kind == "DaemonSet":
		p.refuse(DaemonSet, "DaemonSet %s would create it on the same node", owner.Name)
	case owner.Kind == "Job":
		p.refuse(Job, "Job %s would lose its work, and count it as failed", owner.Name)
	case owner.Kind != "ReplicaSet" && owner.Kind != "StatefulSet" && owner.Kind != "ReplicationController":
		p.refuse(UnknownController, "it is not known whether %s %s would create it again", owner.Kind, owner.Name)
	case p.object.Labels[leaderWorkerSet] != "":
		p.refuse(OtherPods, "LeaderWorkerSet %s would create all pods of its group again", p.object.Labels[leaderWorkerSet])
	}
}

// leaderWorkerSet is the label of the pods of one, whose StatefulSets do not act alone: if a pod of a group is deleted, the whole group is
// by default (sigs.k8s.io/lws, pkg/controllers/pod_controller.go: RecreateGroupOnPodRestart).
const leaderWorkerSet = "leaderworkerset.sigs.k8s.io/name"

// ControllerOf names the controller, with the Deployment in place of its ReplicaSet.
func ControllerOf(p *corev1.Pod) string {
	owner := metav1.GetControllerOf(p)
	if owner == nil {
		return ""
	}
	if name, ok := strings.CutSuffix(owner.Name, "-"+p.Labels["pod-template-hash"]); ok && owner.Kind == "ReplicaSet" {
		return "Deployment/" + name
	}
	return owner.Kind + "/" + owner.Name
}

// checkMarks looks for what else keeps a pod from being restarted, or from a place that can be predicted.
func (c *Cluster) checkMarks(p *pod) {
	for _, mark := range doNotDisrupt {
		if value, ok := p.object.Annotations[mark.key]; ok && (mark.value == "" || value == mark.value) {
			p.refuse(DoNotDisrupt, "it has the annotation %s: %q", mark.key, value)
			return
		}
	}
	if p.object.Labels[v1alpha1.RepackKey] == v1alpha1.RepackNever {
		p.refuse(DoNotDisrupt, "it has the label %s: %q", v1alpha1.RepackKey, v1alpha1.RepackNever)
		return
	}
	if p.object.Annotations[v1alpha1.PlacementAnnotation] == string(packing.Spread) {
		p.refuse(Spread, "its annotation %s asks to spread it", v1alpha1.PlacementAnnotation)
		return
	}
	if why := dependence(p.object); why != "" {
		p.refuse(OtherPods, "where it can run depends on other pods: it has %s", why)
		return
	}
	c.checkBudgets(p)
}

// dependence names the field that makes a pod's node depend on other pods; empty if there is none.
func dependence(p *corev1.Pod) string {
	if a := p.Spec.Affinity; a != nil {
		if a.PodAffinity != nil && len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			return "a required pod affinity"
		}
		if a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			return "a required pod anti-affinity"
		}
	}
	if p.Spec.SchedulingGroup != nil { // kube-scheduler places it with the group
		return "a scheduling group"
	}
	for _, t := range p.Spec.TopologySpreadConstraints {
		if t.WhenUnsatisfiable == corev1.DoNotSchedule {
			return "a topology spread constraint"
		}
	}
	for _, container := range p.Spec.Containers {
		for _, port := range container.Ports {
			if port.HostPort != 0 {
				return "a host port"
			}
		}
	}
	return ""
}

// checkBudgets looks for PodDisruptionBudgets. One pod at a time is restarted, so that one disruption is enough.
func (c *Cluster) checkBudgets(p *pod) {
	var of []*policyv1.PodDisruptionBudget
	for _, b := range c.Budgets {
		if b.Namespace != p.object.Namespace {
			continue
		}
		if selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil && selector.Matches(labels.Set(p.object.Labels)) {
			of = append(of, b)
		}
	}
	switch {
	case len(of) > 1: // pkg/registry/core/pod/storage/eviction.go refuses
		p.refuse(Budget, "%d PodDisruptionBudgets select it, so that it cannot be evicted", len(of))
	case len(of) == 1 && of[0].Status.DisruptionsAllowed < 1:
		p.refuse(Budget, "PodDisruptionBudget %s allows no disruption now", of[0].Name)
	case len(of) == 1:
		p.budget = of[0].Name
	}
}

// checkClaims looks for claims that outlive the pod, and for devices that are not of the driver.
func (c *Cluster) checkClaims(p *pod) {
	for _, claim := range c.users[p.object.UID] {
		_, others := driversOf(claim, c.Driver)
		switch {
		case !metav1.IsControlledBy(claim, p.object):
			p.refuse(NamedClaim, "its claim %s outlives it, and keeps its devices", claim.Name)
		case others:
			p.refuse(OtherDriver, "its claim %s has devices of another driver", claim.Name)
		default:
			continue
		}
		return
	}
}

// checkShares looks for shares that are to be apart: the GPU that is left would be the first that gets a claim again.
func (c *Cluster) checkShares(p *pod) {
	if slices.ContainsFunc(p.uses, func(u packing.Use) bool { return p.on.state.Model().Devices[u.Device].Spread }) {
		p.refuse(Spread, "the policy of its node spreads shares (placement: spread)")
	}
}

// errClaim is returned for a pod whose claims are not all there.
var errClaim = errors.New("its claims cannot be read")

// demandOf is the demand of a replacement: the pod's claims in their order, then the one for its extended resources.
func (c *Cluster) demandOf(p *corev1.Pod) (pools.Demand, error) {
	var specs []*resourceapi.ResourceClaimSpec
	add := func(name string) error {
		claim := c.claims[p.Namespace+"/"+name]
		if claim == nil {
			return fmt.Errorf("find claim %s: %w", name, errClaim)
		}
		specs = append(specs, &claim.Spec)
		return nil
	}
	for i := range p.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i])
		if err == nil && name != nil {
			err = add(*name)
		}
		if err != nil {
			return pools.Demand{}, err
		}
	}
	if status := p.Status.ExtendedResourceClaimStatus; status != nil {
		if err := add(status.ResourceClaimName); err != nil {
			return pools.Demand{}, err
		}
	}
	return pools.NewDemand(c.Classes.Get, specs...)
}
