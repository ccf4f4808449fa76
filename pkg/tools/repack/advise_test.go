// SPDX-License-Identifier: Apache-2.0

package repack

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/golden"
)

const small = "mig-1g.10gb.cleave.dev"

// scattered is two nodes: one with three small pods on a GPU, the other with one more, which would fit on the first.
func scattered(t *testing.T, change ...func(*corev1.Pod, *resourceapi.ResourceClaim)) *bed {
	t.Helper()
	b := newBed(t, "hgx-h100", nodeNames(2)...)
	for _, name := range []string{"a", "b", "c"} {
		b.pod(name, "gpu-1", small, 1, func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.OwnerReferences[0].Kind = "DaemonSet" })
	}
	b.pod("stray", "gpu-2", small, 1, change...)
	return b
}

func TestAdvise_Stray(t *testing.T) {
	b := scattered(t)
	b.o.Budgets = []*policyv1.PodDisruptionBudget{{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "strays"},
		Spec:   policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "stray"}}},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1}}}
	b.pods = append(b.pods, &corev1.Pod{Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu"}}}})
	a := b.advise()
	checkGolden(t, "stray", a)
	if a.WholeNow != 14 || a.WholeThen != 15 {
		t.Errorf("%d GPUs are whole, then %d, want 14 and 15", a.WholeNow, a.WholeThen)
	}
}

// checkGolden compares texts and JSON with files.
func checkGolden(t *testing.T, name string, a *Advice) {
	t.Helper()
	var text, wide bytes.Buffer
	if err := a.Print(&text, false); err != nil {
		t.Fatal(err)
	}
	if err := a.Print(&wide, true); err != nil {
		t.Fatal(err)
	}
	data, err := json.MarshalIndent(a, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	for file, got := range map[string]string{".txt": text.String(), "-wide.txt": wide.String(), ".json": string(data) + "\n"} {
		golden.Check(t, filepath.Join("testdata", name+file), got)
	}
}

// Shares of two GPUs would fit on one: a restart brings them together, unless the policy spreads them.
func TestAdvise_SpreadShares(t *testing.T) {
	for placement, want := range map[v1alpha1.SharePlacement]int{v1alpha1.PlacementPack: 1, v1alpha1.PlacementSpread: 0} {
		b := newBed(t, "hgx-h100")
		b.rules = []v1alpha1.Rule{{Tiers: []v1alpha1.Tier{v1alpha1.TierExclusive, v1alpha1.TierTimeSlice},
			TimeSlice: &v1alpha1.TimeSlicePolicy{Placement: placement}}}
		b.addNode("hgx-h100", "gpu-1")
		b.pod("a", "gpu-1", "timeslice.cleave.dev", 1)
		b.pod("b", "gpu-1", "timeslice.cleave.dev", 1, func(_ *corev1.Pod, claim *resourceapi.ResourceClaim) {
			last := b.slices[2].Spec.Devices
			claim.Status.Allocation.Devices.Results[0].Device = last[len(last)-1].Name
		})
		a := b.advise()
		if len(a.Steps) != want || a.WholeNow != 6 {
			t.Errorf("%s: got %d steps with %d whole GPUs, want %d with 6", placement, len(a.Steps), a.WholeNow, want)
		}
		for _, k := range a.Kept {
			if k.Reason != Spread || !strings.Contains(k.Message, "policy of its node spreads shares") {
				t.Errorf("%s: %s is kept by %s: %s", placement, k.Pod, k.Reason, k.Message)
			}
		}
		if got := len(a.Kept); got != 2*(1-want) {
			t.Errorf("%s: %d pods are kept, want %d", placement, got, 2*(1-want))
		}
	}
}

func TestAdvise_Kept(t *testing.T) {
	type change = func(*corev1.Pod, *resourceapi.ResourceClaim)
	owner := func(kind string) change {
		return func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.OwnerReferences[0].Kind = kind }
	}
	annotation := func(key, value string) change {
		return func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.Annotations = map[string]string{key: value} }
	}
	for name, tt := range map[string]struct {
		change change
		reason Reason
		says   string
	}{
		"deleted":     {func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.DeletionTimestamp = &metav1.Time{} }, Ending, "being deleted"},
		"bare":        {func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.OwnerReferences = nil }, NoController, "no controller"},
		"daemon":      {owner("DaemonSet"), DaemonSet, "DaemonSet stray-7c9f would create it on the same node"},
		"job":         {owner("Job"), Job, "Job stray-7c9f would lose its work"},
		"custom":      {owner("RayCluster"), UnknownController, "whether RayCluster stray-7c9f would create it again"},
		"karpenter":   {annotation("karpenter.sh/do-not-disrupt", "true"), DoNotDisrupt, "karpenter.sh/do-not-disrupt"},
		"autoscaler":  {annotation("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"), DoNotDisrupt, "safe-to-evict"},
		"descheduler": {annotation("descheduler.alpha.kubernetes.io/prefer-no-eviction", ""), DoNotDisrupt, "prefer-no-eviction"},
		"marked":      {annotation(v1alpha1.RepackKey, v1alpha1.RepackNever), DoNotDisrupt, "annotation gpu.cleave.dev/repack"},
		"labelled": {func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.Labels[v1alpha1.RepackKey] = v1alpha1.RepackNever }, DoNotDisrupt,
			"label gpu.cleave.dev/repack"},
		"spread": {annotation(v1alpha1.PlacementAnnotation, "spread"), Spread, v1alpha1.PlacementAnnotation},
		"anti-affinity": {func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname}}}}
		}, OtherPods, "a required pod anti-affinity"},
		"affinity": {func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname}}}}
		}, OtherPods, "a required pod affinity"},
		"topology": {func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{WhenUnsatisfiable: corev1.DoNotSchedule}}
		}, OtherPods, "a topology spread constraint"},
		"host port": {func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}}
		}, OtherPods, "a host port"},
		"group": {func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("group")}
		}, OtherPods, "a scheduling group"},
		"LeaderWorkerSet": {func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Labels["leaderworkerset.sigs.k8s.io/name"] = "llm"
		}, OtherPods,
			"LeaderWorkerSet llm would create all pods of its group again"},
		"named claim": {func(_ *corev1.Pod, c *resourceapi.ResourceClaim) { c.OwnerReferences = nil }, NamedClaim, "its claim stray outlives it"},
		"other driver": {func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
			r := &c.Status.Allocation.Devices
			r.Results = append(r.Results, resourceapi.DeviceRequestAllocationResult{Driver: "net.example.com", Pool: "p", Device: "nic"})
		}, OtherDriver, "its claim stray has devices of another driver"},
		"all devices": {func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
			c.Spec.Devices.Requests[0].Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
		}, Unpredictable, "has the mode All"},
		"class gone": {func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
			c.Spec.Devices.Requests[0].Exactly.DeviceClassName = "gone"
		},
			Unpredictable, `no DeviceClass "gone"`},
		"claim without pod": {func(_ *corev1.Pod, c *resourceapi.ResourceClaim) { c.Status.ReservedFor = nil }, Unused, "no pod uses it"},
	} {
		t.Run(name, func(t *testing.T) {
			a := scattered(t, tt.change).advise()
			if len(a.Steps) > 0 {
				t.Errorf("got steps %+v, want none", a.Steps)
			}
			last := a.Kept[len(a.Kept)-1]
			if last.Pod+last.Claim != "stray" || last.Reason != tt.reason || !strings.Contains(last.Message, tt.says) {
				t.Errorf("got %+v, want %s and %q", last, tt.reason, tt.says)
			}
		})
	}
}

func TestAdvise_Budgets(t *testing.T) {
	budget := func(allowed int32, name string) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name},
			Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}}, Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed}}
	}
	for name, tt := range map[string]struct {
		budgets []*policyv1.PodDisruptionBudget
		says    string
	}{
		"none allowed": {[]*policyv1.PodDisruptionBudget{budget(0, "x")}, "PodDisruptionBudget x allows no disruption now"},
		"two":          {[]*policyv1.PodDisruptionBudget{budget(1, "x"), budget(1, "y")}, "2 PodDisruptionBudgets select it"},
	} {
		b := scattered(t)
		b.o.Budgets = tt.budgets
		a := b.advise()
		if last := a.Kept[len(a.Kept)-1]; len(a.Steps) > 0 || last.Reason != Budget || !strings.Contains(last.Message, tt.says) {
			t.Errorf("%s: got steps %+v and %+v, want %q", name, a.Steps, last, tt.says)
		}
	}
}

// TestAdvise_NodesOfPods: a replacement needs a node that takes it.
func TestAdvise_NodesOfPods(t *testing.T) {
	volume := func(values ...string) *corev1.PersistentVolume {
		v := &corev1.PersistentVolume{}
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ml", Name: "data"}
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: values}}}}}}
		return v
	}
	mount := func(b *bed) {
		b.pods[3].Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	}
	for name, tt := range map[string]struct {
		change  func(*bed)
		advised bool
	}{
		"as it is":      {func(*bed) {}, true},
		"cordoned":      {func(b *bed) { b.o.Nodes[0].Spec.Unschedulable = true }, false},
		"node selector": {func(b *bed) { b.pods[3].Spec.NodeSelector = map[string]string{corev1.LabelHostname: "gpu-2"} }, false},
		"taint": {func(b *bed) {
			b.o.Nodes[0].Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
		}, false},
		"tolerated taint": {func(b *bed) {
			b.o.Nodes[0].Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
			b.pods[3].Spec.Tolerations = []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}
		}, true},
		"pod tolerates a cordon": {func(b *bed) {
			b.pods[3].Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		}, false},
		"no CPU": {func(b *bed) { b.o.Nodes[0].Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("7") }, false},
		"CPU of another pod": {func(b *bed) {
			p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "gpu-1", Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("57")}}}}}}
			b.pods = append(b.pods, p)
		}, false},
		"no room for pods":    {func(b *bed) { b.o.Nodes[0].Status.Allocatable[corev1.ResourcePods] = resource.MustParse("3") }, false},
		"no Node object":      {func(b *bed) { b.o.Nodes = b.o.Nodes[1:] }, false},
		"volume of the node":  {func(b *bed) { mount(b); b.o.Volumes = []*corev1.PersistentVolume{volume("gpu-2")} }, false},
		"volume of both":      {func(b *bed) { mount(b); b.o.Volumes = []*corev1.PersistentVolume{volume("gpu-1", "gpu-2")} }, true},
		"GPU of no use after": {func(b *bed) { b.o.Nodes[1].Spec.Unschedulable = true }, false},
		"node is not ready":   {func(b *bed) { b.o.Nodes[1].Status.Conditions[0].Status = corev1.ConditionUnknown }, false},
		"taint on the other GPUs": {func(b *bed) {
			b.o.Rules = []*resourceapi.DeviceTaintRule{{Spec: resourceapi.DeviceTaintRuleSpec{
				DeviceSelector: &resourceapi.DeviceTaintSelector{Pool: new("gpu-1")},
				Taint:          resourceapi.DeviceTaint{Key: "rma", Effect: resourceapi.DeviceTaintEffectNoSchedule}}}}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := scattered(t)
			tt.change(b)
			if a := b.advise(); len(a.Steps) == 1 != tt.advised {
				t.Errorf("got steps %+v, want advice: %t", a.Steps, tt.advised)
			}
		})
	}
}

// TestAdvise_WholeGPU: where a claim's GPU has nothing but it, no restart gains anything.
func TestAdvise_WholeGPU(t *testing.T) {
	b := newBed(t, "hgx-h100", nodeNames(2)...)
	b.pod("train", "gpu-1", "gpu.cleave.dev", 2)
	b.pod("stray", "gpu-2", small, 1)
	if a := b.advise(); len(a.Steps) > 0 || len(a.Kept) > 0 || a.WholeNow != 13 || a.WholeThen != 13 {
		t.Errorf("got %+v", a)
	}
}

// TestAdvise_FirstFit: on one node, a replacement goes to the first GPU with room, so that only the last one can be emptied.
func TestAdvise_FirstFit(t *testing.T) {
	b := newBed(t, "hgx-h100", "gpu-1")
	for i := range 9 {
		b.pod(string(rune('a'+i)), "gpu-1", small, 1)
	}
	for range 6 {
		b.end(0)
	}
	a := b.advise()
	if len(a.Steps) != 1 || len(a.Steps[0].Pods) != 2 || a.Steps[0].Pods[0].Pod != "h" || a.Steps[0].Pods[1].Pod != "i" {
		t.Errorf("got %+v, want restarts of h and i on the second GPU", a.Steps)
	}
}

func TestAdvise_IncompletePool(t *testing.T) {
	b := scattered(t)
	b.slices = b.slices[1:]
	a, err := b.cluster().Advise(t.Context())
	if err != nil || len(a.Steps) > 0 || len(a.Problems) != 1 || !strings.Contains(a.Problems[0], "node gpu-1 is not considered") {
		t.Errorf("got %+v, %v", a, err)
	}
}

func TestControllerOf(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"pod-template-hash": "7c9f"}}}
	if got := ControllerOf(p); got != "" {
		t.Errorf("got %q for a bare pod", got)
	}
	for name, want := range map[string]string{"infer-7c9f": "Deployment/infer", "infer": "ReplicaSet/infer"} {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: name, Controller: new(true)}}
		if got := ControllerOf(p); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
