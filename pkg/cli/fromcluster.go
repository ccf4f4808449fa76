// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/pager"

	"github.com/cleave-dra/cleave/pkg/inspect"
)

// clusterTimeout bounds each request to the API server.
const clusterTimeout = 30 * time.Second

// clusterClient returns a client configured like kubectl: from the given file, $KUBECONFIG, ~/.kube/config, or the pod's
// service account.
func clusterClient(kubeconfig string) (kubernetes.Interface, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the API server (set --kubeconfig or KUBECONFIG): %w", err)
	}
	config.Timeout = clusterTimeout
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for the API server at %s: %w", config.Host, err)
	}
	return client, nil
}

// viewNode reads the view of a node from its cluster.
func viewNode(ctx context.Context, client kubernetes.Interface, node, driver string) (*inspect.View, error) {
	p := inspect.Pool{Node: node, Driver: driver}
	var err error
	if p.Slices, err = listSlices(ctx, client, fields.Set{
		resourceapi.ResourceSliceSelectorNodeName: node, resourceapi.ResourceSliceSelectorDriver: driver,
	}); err != nil {
		return nil, err
	}
	err = each(ctx, "ResourceClaims", func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, opts)
	}, func(c *resourceapi.ResourceClaim) {
		if isAllocated(c, driver) {
			p.Claims = append(p.Claims, *c)
		}
	})
	if err != nil {
		return nil, err
	}
	rulesErr := each(ctx, "DeviceTaintRules", func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return client.ResourceV1().DeviceTaintRules().List(ctx, opts)
	}, func(r *resourceapi.DeviceTaintRule) { p.Rules = append(p.Rules, *r) })
	view, err := inspect.OfPool(p)
	if err != nil {
		return nil, explain(ctx, client, node, driver, err)
	}
	if rulesErr != nil && !apierrors.IsNotFound(rulesErr) { // older releases have no such API
		view.Problems = append(view.Problems, fmt.Sprintf("taints of DeviceTaintRules are not shown: %v", rulesErr))
	}
	return view, nil
}

// isAllocated reports whether a claim is allocated devices of a driver.
func isAllocated(c *resourceapi.ResourceClaim, driver string) bool {
	return c.Status.Allocation != nil && slices.ContainsFunc(c.Status.Allocation.Devices.Results,
		func(r resourceapi.DeviceRequestAllocationResult) bool { return r.Driver == driver })
}

// each lists objects page by page.
func each[T any](ctx context.Context, what string, list pager.ListPageFunc, do func(*T)) error {
	pages := pager.New(list)
	pages.PageBufferSize = 0
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		if item, ok := o.(any).(*T); ok {
			do(item)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", what, err)
	}
	return nil
}

func listSlices(ctx context.Context, client kubernetes.Interface, selector fields.Set) ([]resourceapi.ResourceSlice, error) {
	var all []resourceapi.ResourceSlice
	err := each(ctx, "ResourceSlices", func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		opts.FieldSelector = selector.AsSelector().String()
		return client.ResourceV1().ResourceSlices().List(ctx, opts)
	}, func(s *resourceapi.ResourceSlice) { all = append(all, *s) })
	return all, err
}

// explain adds hints about the cluster to a NoSlicesError.
func explain(ctx context.Context, client kubernetes.Interface, node, driver string, err error) error {
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
