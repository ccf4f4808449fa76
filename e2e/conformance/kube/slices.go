// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pool are the slices of one pool, in order of their names, as the allocator reads them.
type Pool struct {
	Name string
	// Slices are those of the highest generation.
	Slices []*resourceapi.ResourceSlice
	// Stale are names of slices of older generations.
	Stale []string
}

// Complete is nil if consumers may use the pool: ResourceSliceCount says how many slices it has, and it has them.
func (p Pool) Complete() error {
	for _, s := range p.Slices {
		if count := s.Spec.Pool.ResourceSliceCount; count != int64(len(p.Slices)) {
			return fmt.Errorf("pool %s has %d slices of generation %d, and slice %s says %d", p.Name, len(p.Slices), s.Spec.Pool.Generation,
				s.Name, count)
		}
	}
	if len(p.Stale) > 0 {
		return fmt.Errorf("pool %s keeps slices of older generations: %s", p.Name, strings.Join(p.Stale, ", "))
	}
	return nil
}

// Devices of a pool, in the order in which they are allocated.
func (p Pool) Devices() []resourceapi.Device {
	var all []resourceapi.Device
	for _, s := range p.Slices {
		all = append(all, s.Spec.Devices...)
	}
	return all
}

// CounterSets of a pool.
func (p Pool) CounterSets() []resourceapi.CounterSet {
	var all []resourceapi.CounterSet
	for _, s := range p.Slices {
		all = append(all, s.Spec.SharedCounters...)
	}
	return all
}

// Slices are the driver's that are of the node, or of no single node, by name.
func (c *Cluster) Slices(ctx context.Context) ([]*resourceapi.ResourceSlice, error) {
	list, err := c.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + c.Driver,
	})
	if err != nil {
		return nil, fmt.Errorf("list ResourceSlices of %s: %w", c.Driver, err)
	}
	var found []*resourceapi.ResourceSlice
	for i := range list.Items {
		if s := &list.Items[i]; s.Spec.Driver == c.Driver && (s.Spec.NodeName == nil || *s.Spec.NodeName == c.Node) {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b *resourceapi.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}

// Pools are the driver's, by name.
func (c *Cluster) Pools(ctx context.Context) ([]Pool, error) {
	all, err := c.Slices(ctx)
	if err != nil {
		return nil, err
	}
	return pools(all), nil
}

func pools(all []*resourceapi.ResourceSlice) []Pool {
	newest := map[string]int64{}
	for _, s := range all {
		newest[s.Spec.Pool.Name] = max(newest[s.Spec.Pool.Name], s.Spec.Pool.Generation)
	}
	var found []Pool
	for _, s := range all {
		i := slices.IndexFunc(found, func(p Pool) bool { return p.Name == s.Spec.Pool.Name })
		if i < 0 {
			i = len(found)
			found = append(found, Pool{Name: s.Spec.Pool.Name})
		}
		if s.Spec.Pool.Generation == newest[s.Spec.Pool.Name] {
			found[i].Slices = append(found[i].Slices, s)
		} else {
			found[i].Stale = append(found[i].Stale, s.Name)
		}
	}
	slices.SortFunc(found, func(a, b Pool) int { return strings.Compare(a.Name, b.Name) })
	return found
}

// Accept asks the API server whether it would take a slice as it is published, without storing anything.
func (c *Cluster) Accept(ctx context.Context, published *resourceapi.ResourceSlice) error {
	again := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: "dra-conformance-"}, Spec: *published.Spec.DeepCopy()}
	accepted, err := c.Client.ResourceV1().ResourceSlices().Create(ctx, again, metav1.CreateOptions{
		DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict,
	})
	if err != nil {
		return fmt.Errorf("create slice %s again, dry run: %w", published.Name, err)
	}
	if len(accepted.Spec.Devices) != len(published.Spec.Devices) {
		return fmt.Errorf("create slice %s again, dry run: %d of %d devices are accepted", published.Name, len(accepted.Spec.Devices),
			len(published.Spec.Devices))
	}
	return nil
}
