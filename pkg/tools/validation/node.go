// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/explain"
)

// Node is what policies and claims are checked against.
type Node struct {
	// Words for people, such as "an hgx-h100 node".
	Words        string
	GPUs         *gpu.Node
	Capabilities policy.Capabilities
	// Model reports that there is no such node yet: GPUs are in the MIG mode that the policy needs.
	Model bool
}

// checkOnNode holds policies against the node's boards, and claims against the devices that the node would publish.
func (v *validation) checkOnNode(ctx context.Context) error {
	p, err := v.checkPolicies()
	if err != nil {
		return err
	}
	if p == nil {
		return nil // it is wrong, which was said
	}
	node := v.Node.GPUs
	if v.Node.Model {
		node, _ = policy.InMIGMode(p, node)
	}
	n := v.newOnNode(policy.Apply(p, node, v.Node.Capabilities))
	for _, o := range v.objects {
		if spec, path := specOf(o.Object); spec != nil {
			if err := v.checkClaim(ctx, o, spec.Devices, path, n); err != nil {
				return err
			}
		}
	}
	for _, p := range v.pods {
		if err := (podChecks{v}).checkPodOn(ctx, p, n); err != nil {
			return err
		}
	}
	return nil
}

// checkPolicies holds policies against the node: the one that is asked for, or all. It returns the one that the node has,
// nil if that is wrong.
func (v *validation) checkPolicies() (*v1alpha1.NodePolicy, error) {
	var mine *v1alpha1.NodePolicy
	broken, known := false, []string{}
	for _, set := range v.sets {
		known = append(known, set.Names()...)
		for _, name := range set.Names() {
			if v.PolicyName != "" && name != v.PolicyName {
				continue
			}
			_, p, err := set.Select(name)
			if err != nil {
				return nil, err
			}
			where := set.File(name)
			err = policy.Check(p, v.Node.GPUs)
			if err == nil {
				err = policy.CheckOffers(p, v.Node.GPUs, v.Node.Capabilities)
			}
			if err != nil {
				for _, problem := range v1alpha1.ProblemsOf(fmt.Errorf("%s: policy %q: on %s: %w", where, name, v.Node.Words, err)) {
					v.at[where].Problems = append(v.at[where].Problems, problem.Error())
				}
			}
			if mine == nil && (name == v.PolicyName || v.PolicyName == "" && name == v1alpha1.DefaultPolicy) {
				mine = p
			}
		}
		if _, _, err := set.Select(v.PolicyName); err != nil && (v.PolicyName == "" || set.File(v.PolicyName) != "") {
			broken = true
		}
	}
	switch {
	case mine != nil || broken:
		return mine, nil
	case v.PolicyName == "":
		return &v1alpha1.NodePolicy{}, nil
	case slices.ContainsFunc(v.files, func(f *File) bool { return len(f.Problems) > 0 }):
		return nil, nil //nolint:nilnil // the policy may be in what could not be read, which was said
	default:
		slices.Sort(known)
		return nil, fmt.Errorf("there is no policy %q: choose one of %s", v.PolicyName, strings.Join(slices.Compact(known), ", "))
	}
}

// onNode is what claims are checked against: a node with nothing allocated, and the classes that are known.
type onNode struct {
	objects explain.Objects
	slices  []resourceapi.ResourceSlice
}

// modelNode is the name of the node and of its pool.
const modelNode = "node"

func (v *validation) newOnNode(node *policy.Node) *onNode {
	n := &onNode{slices: nodeslices.Objects(node, v.Rules.Driver, modelNode).Items}
	n.objects = explain.Objects{Driver: v.Rules.Driver, Nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: modelNode}}}}
	for _, name := range slices.Sorted(maps.Keys(v.classes)) {
		n.objects.Classes = append(n.objects.Classes, v.classes[name])
	}
	return n
}

// misfit says why a claim with these requests and constraints is not allocated; empty where it is.
func (n *onNode) misfit(ctx context.Context, o *object, devices resourceapi.DeviceClaim) (string, error) {
	claim := &resourceapi.ResourceClaim{Spec: resourceapi.ResourceClaimSpec{Devices: devices}}
	if named, ok := o.Object.(metav1.Object); ok {
		claim.Namespace, claim.Name = named.GetNamespace(), named.GetName()
	}
	return n.refusal(ctx, explain.AboutClaim(claim))
}

// refusal says why the node does not give what a question asks for; empty where it does.
func (n *onNode) refusal(ctx context.Context, q *explain.Question) (string, error) {
	c := explain.NewCluster(n.objects, q)
	for i := range n.slices {
		c.AddSlice(&n.slices[i])
	}
	e, err := c.Explain(ctx, q)
	if err != nil || e.State != explain.Refused {
		return "", err
	}
	causes := e.Causes
	if len(causes) == 0 {
		causes = e.Groups[0].Causes // that of the only node
	}
	var why []string
	for _, c := range causes {
		text := c.Message
		if c.Kind == explain.Invalid && c.Remedy != "" {
			text += " (" + c.Remedy + ")"
		}
		why = append(why, text)
	}
	return strings.Join(why, "; "), nil
}

// checkClaim finds the requests of a claim that no device of the node fits, as cleave explain does: each by itself, and then all of
// them together.
func (v *validation) checkClaim(ctx context.Context, o *object, devices resourceapi.DeviceClaim, path *field.Path, n *onNode) error {
	if o.wrong || !v.classesKnown(o, &devices, path) {
		return nil
	}
	fits := true
	for i, r := range devices.Requests {
		why, err := n.misfit(ctx, o, resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{r}})
		if err != nil {
			return err
		}
		if why != "" {
			fits = false
			o.problems(field.ErrorList{field.Invalid(path.Child("requests").Index(i), r.Name,
				fmt.Sprintf("no device of %s fits: %s", v.Node.Words, why))})
		}
	}
	if !fits {
		return nil // o.wrong is set
	}
	why, err := n.misfit(ctx, o, devices)
	if why != "" {
		o.problems(field.ErrorList{field.Invalid(path, field.OmitValueType{}, fmt.Sprintf("not allocated on %s: %s", v.Node.Words, why))})
	}
	return err
}

// classesKnown reports whether the claim can be checked. It notes classes that are not known.
func (v *validation) classesKnown(o *object, devices *resourceapi.DeviceClaim, path *field.Path) bool {
	known := true
	for i := range devices.Requests {
		for _, r := range requestsOf(&devices.Requests[i], path.Child("requests").Index(i)) {
			if v.classes[r.class] == nil {
				known = false
				if v.isMisspelled(r.class) {
					continue // which was said
				}
				o.file.Notes = append(o.file.Notes,
					fmt.Sprintf("%s: %s: %s.deviceClassName: DeviceClass %q is neither in these files nor one of Cleave's: not checked against %s",
						o.file.Path, o.name, r.path, r.class, v.Node.Words))
			}
		}
	}
	return known
}
