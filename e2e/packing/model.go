// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// Inventory is what Cleave finds on a fresh node of a model.
func Inventory(ctx context.Context, model string) (*policy.Node, error) {
	session, err := simulated.Open(ctx, model)
	if err != nil {
		return nil, err
	}
	node := &policy.Node{Node: session.Node()}
	return node, session.Close()
}

// PublishedByModel is what Cleave publishes on a fresh node of a model, under a policy; nil for the built-in one.
func PublishedByModel(ctx context.Context, model string, p *v1alpha1.NodePolicy) ([]*resourceapi.ResourceSlice, error) {
	node, err := Inventory(ctx, model)
	if err != nil {
		return nil, err
	}
	if p == nil {
		p = &v1alpha1.NodePolicy{}
	}
	return Cleave(policy.Apply(p, node.Node, policy.Capabilities{})), nil
}

// ForNode are slices as another node publishes them.
func ForNode(published []*resourceapi.ResourceSlice, node string) []*resourceapi.ResourceSlice {
	all := make([]*resourceapi.ResourceSlice, 0, len(published))
	for i, s := range published {
		s = s.DeepCopy()
		s.Name = fmt.Sprintf("%05x-%s-%s", i, s.Spec.Driver, node)
		s.Spec.NodeName, s.Spec.Pool.Name = &node, node
		all = append(all, s)
	}
	return all
}
