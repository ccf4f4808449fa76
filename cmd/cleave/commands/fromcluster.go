// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// viewNode reads the view of a node from its cluster.
func viewNode(ctx context.Context, client kubernetes.Interface, node, driver string) (*inspect.View, error) {
	p := inspect.Pool{Node: node, Driver: driver}
	var err error
	if p.Slices, err = listSlices(ctx, client, fields.Set{
		resourceapi.ResourceSliceSelectorNodeName: node, resourceapi.ResourceSliceSelectorDriver: driver,
	}); err != nil {
		return nil, err
	}
	rulesErr, err := allocations(ctx, client, driver, &p)
	if err != nil {
		return nil, err
	}
	view, err := inspect.OfPool(p)
	if err != nil {
		return nil, withHints(ctx, client, node, driver, err)
	}
	if rulesErr != nil {
		view.Problems = append(view.Problems, rulesErr.Error())
	}
	view.Problems = append(append(view.Problems, closed(ctx, client, node)...), notCounted(ctx, client, driver)...)
	return view, nil
}

// closed is why claims get nothing of a node, whatever is free, or why that is not known.
func closed(ctx context.Context, client kubernetes.Interface, node string) []string {
	state := inspect.NodeUnknown
	n, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	switch {
	case err == nil:
		state = inspect.NodeState(n)
	case !apierrors.IsNotFound(err):
		return []string{fmt.Sprintf("whether the node accepts pods is not known: %v", err)}
	}
	if state == "" {
		return nil
	}
	return []string{"claims get nothing of this node, whatever is free: " + state}
}

// fleet prints an overview of all nodes.
func (f *inspectFlags) fleet(ctx context.Context, w io.Writer) error {
	client, _, err := f.clients.client()
	if err != nil {
		return err
	}
	fleet, err := viewFleet(ctx, client, f.DriverName)
	if err != nil {
		return err
	}
	if f.Structured() {
		return cli.PrintAs(w, f.Format, fleet)
	}
	return fleet.Print(w, f.Options(w))
}

// viewFleet reads the overview of a cluster.
func viewFleet(ctx context.Context, client kubernetes.Interface, driver string) (*inspect.Fleet, error) {
	var p inspect.Pool
	rulesErr, err := allocations(ctx, client, driver, &p)
	if err != nil {
		return nil, err
	}
	set := inspect.NewSliceSet()
	var broken error
	err = eachSlice(ctx, client, fields.Set{resourceapi.ResourceSliceSelectorDriver: driver}, func(s *resourceapi.ResourceSlice) {
		if s.Spec.Driver == driver {
			broken = errors.Join(broken, set.AddForOverview(s))
		}
	})
	if err = errors.Join(err, broken); err != nil {
		return nil, err
	}
	states, statesErr := nodeStates(ctx, client)
	cache := pools.NewCache()
	fleet := inspect.OfFleet(driver, set, p.Claims, p.Rules, states, func(p inspect.Pool) (*packing.State, error) {
		return cache.State(p.Slices, p.Claims, p.Rules)
	})
	for _, err := range []error{rulesErr, statesErr} {
		if err != nil {
			fleet.Problems = append(fleet.Problems, err.Error())
		}
	}
	fleet.Problems = append(fleet.Problems, notCounted(ctx, client, driver)...)
	return fleet, nil
}

// nodeStates reports which nodes accept pods; nil if they cannot be read.
func nodeStates(ctx context.Context, client kubernetes.Interface) (map[string]string, error) {
	states := map[string]string{}
	err := each(ctx, "Nodes", client.CoreV1().Nodes().List, func(n *corev1.Node) { states[n.Name] = inspect.NodeState(n) })
	if err != nil {
		return nil, fmt.Errorf("free capacity includes nodes that accept no pods: %w", err)
	}
	return states, nil
}

// allocations reads the claims that are allocated devices of a driver, and the taints of DeviceTaintRules. rulesErr is why there
// are none of the latter: older releases have no such API.
func allocations(ctx context.Context, client kubernetes.Interface, driver string, p *inspect.Pool) (rulesErr, err error) {
	err = each(ctx, "ResourceClaims", client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List, func(c *resourceapi.ResourceClaim) {
		if isAllocated(c, driver) {
			c.ManagedFields = nil
			p.Claims = append(p.Claims, *c)
		}
	})
	if err != nil {
		return nil, err
	}
	rulesErr = each(ctx, "DeviceTaintRules", client.ResourceV1().DeviceTaintRules().List,
		func(r *resourceapi.DeviceTaintRule) { p.Rules = append(p.Rules, *r) })
	if rulesErr != nil && !apierrors.IsNotFound(rulesErr) {
		return fmt.Errorf("taints of DeviceTaintRules are not shown: %w", rulesErr), nil
	}
	return nil, nil
}

func isAllocated(c *resourceapi.ResourceClaim, driver string) bool {
	return c.Status.Allocation != nil && slices.ContainsFunc(c.Status.Allocation.Devices.Results,
		func(r resourceapi.DeviceRequestAllocationResult) bool { return r.Driver == driver })
}

// withHints adds hints about the cluster's slices to a NoSlicesError.
func withHints(ctx context.Context, client kubernetes.Interface, node, driver string, err error) error {
	none := (*inspect.NoSlicesError)(nil)
	if !errors.As(err, &none) {
		return err
	}
	all, listErr := listSlices(ctx, client, nil)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	var nodes, drivers []string
	for _, s := range all {
		if s.Spec.NodeName == nil {
			continue
		}
		if s.Spec.Driver == driver {
			nodes = append(nodes, *s.Spec.NodeName)
		}
		if *s.Spec.NodeName == node {
			drivers = append(drivers, s.Spec.Driver)
		}
	}
	var hints []string
	if _, nodeErr := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); apierrors.IsNotFound(nodeErr) {
		hints = append(hints, "the cluster has no node of this name")
	} else {
		hints = append(hints, "the plugin does not run there or is waiting for the NVIDIA driver: see its log")
	}
	if len(drivers) > 0 {
		hints = append(hints, "the node has slices of "+names(drivers)+" (--driver-name)")
	}
	if len(nodes) > 0 {
		hints = append(hints, "nodes with slices of "+driver+": "+names(nodes))
	} else {
		hints = append(hints, "no node has slices of "+driver)
	}
	return fmt.Errorf("%w: %s", err, strings.Join(hints, "; "))
}

// names lists distinct names in order, up to a limit.
func names(all []string) string {
	const most = 20
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) > most {
		return strings.Join(all[:most], ", ") + fmt.Sprintf(" and %d more", len(all)-most)
	}
	return strings.Join(all, ", ")
}
