// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/gpu"
)

// surroundings is what the API server says of the node that the plugin goes by: the label that picks a policy, and who
// else hands out GPUs.
type surroundings struct {
	client       kubernetes.Interface
	driver, node string

	object *watched[nodeFacts]
	others *watched[[]otherDevice]
	// own are the slices of this driver. ownChanged has a value after they have changed.
	own        *watched[ownSlice]
	ownChanged chan struct{}

	// daemonSet is the plugin's own, "namespace/name"; empty for none.
	daemonSet string
	installed *watched[bool]
	// seenInstalled says that it was there once.
	seenInstalled atomic.Bool

	// last is what the Node object said last: it holds while the object is gone for a moment. Only facts touches it.
	last nodeFacts
}

// nodeFacts is what is needed of a Node object.
type nodeFacts struct {
	// policy is the value of the label that picks a policy; empty where there is none.
	policy string
	// drain tells that the driver is to be let go of.
	drain bool
	// pluginResources are the resources by which a device plugin hands out GPUs, in order of their names.
	pluginResources []pluginResource
}

// pluginResource is an extended resource of a node.
type pluginResource struct {
	name string
	// quantity of the node's capacity, or of what is allocatable where that is more.
	quantity string
}

// otherDevice is a device of another DRA driver that has a PCI address.
type otherDevice struct {
	driver, name string
	pci          gpu.PCIAddress
}

// newSurroundings makes them; changed is called, and must not block, when something is another than before.
func newSurroundings(client kubernetes.Interface, driver, node string, changed func()) *surroundings {
	ownChanged := make(chan struct{}, 1)
	s := &surroundings{
		own:        newWatched(0, func() { signal(ownChanged) }, func(object any) (ownSlice, bool) { return ownSliceOf(object, driver, node) }),
		ownChanged: ownChanged,
		client:     client, driver: driver, node: node,
		object: newWatched(1, changed, factsOf),
		others: newWatched(0, changed, func(object any) ([]otherDevice, bool) { return otherDevices(object, driver) }),
	}
	s.installed = newWatched(0, func() {}, s.isInstalled)
	return s
}

// follow keeps up with the API server until ctx ends. It tells why something could not be read.
func (s *surroundings) follow(ctx context.Context, failed func(error)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.followDaemonSet(ctx) })
	wg.Go(func() {
		selector := fields.OneTermEqualSelector("metadata.name", s.node).String()
		follow(ctx, s.object, s.client, s.client.CoreV1().Nodes(), &corev1.Node{}, selector, func(err error) {
			failed(fmt.Errorf("read Node %s: %w", s.node, err))
		})
	})
	wg.Go(func() {
		selector := fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, s.node).String()
		follow(ctx, both{s.others, s.own}, s.client, s.client.ResourceV1().ResourceSlices(), &resourceapi.ResourceSlice{}, selector, func(err error) {
			failed(fmt.Errorf("read the ResourceSlices of node %s: %w", s.node, err))
		})
	})
}

// followDaemonSet keeps up with the plugin's DaemonSet until ctx ends.
func (s *surroundings) followDaemonSet(ctx context.Context) {
	namespace, name, ok := strings.Cut(s.daemonSet, "/")
	if !ok {
		return
	}
	selector := fields.OneTermEqualSelector("metadata.name", name).String()
	follow(ctx, s.installed, s.client, s.client.AppsV1().DaemonSets(namespace), &appsv1.DaemonSet{}, selector, func(err error) {
		klog.FromContext(ctx).V(4).Info("Cannot follow the plugin's DaemonSet", "daemonSet", s.daemonSet, "reason", err.Error())
	})
}

// daemonSetGone reports whether the plugin's DaemonSet was there and was then seen to be deleted. What could not be seen
// counts as there.
func (s *surroundings) daemonSetGone() bool {
	return s.seenInstalled.Load() && len(s.installed.all()) == 0
}

// isInstalled takes what is needed of a DaemonSet: that it is there and is to stay.
func (s *surroundings) isInstalled(object any) (bool, bool) {
	set, ok := object.(*appsv1.DaemonSet)
	if !ok || set.Namespace+"/"+set.Name != s.daemonSet || set.DeletionTimestamp != nil {
		return false, false
	}
	s.seenInstalled.Store(true)
	return true, true
}

// wait returns once all is known, or ctx ends.
func (s *surroundings) wait(ctx context.Context) error {
	for _, known := range []chan struct{}{s.object.known, s.others.known} {
		select {
		case <-known:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// isKnown tells whether all was read once.
func (s *surroundings) isKnown() bool {
	for _, known := range []chan struct{}{s.object.known, s.others.known} {
		select {
		case <-known:
		default:
			return false
		}
	}
	return true
}

// facts are those of the node, as last seen. One goroutine asks for them.
func (s *surroundings) facts() nodeFacts {
	if now := s.object.all(); len(now) > 0 {
		s.last = now[0]
	}
	return s.last
}

// otherDevices are those of all other drivers, in order of their slices.
func (s *surroundings) otherDevices() []otherDevice { return slices.Concat(s.others.all()...) }

// factsOf takes what is needed of a Node.
func factsOf(object any) (nodeFacts, bool) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return nodeFacts{}, false
	}
	facts := nodeFacts{policy: node.Labels[v1alpha1.PolicyLabel], drain: v1alpha1.ReleasesDriver(node.Labels)}
	most := map[string]resource.Quantity{}
	for _, list := range []corev1.ResourceList{node.Status.Capacity, node.Status.Allocatable} {
		for name, q := range list {
			if have := most[string(name)]; handsOutGPUs(string(name)) && q.Cmp(have) > 0 {
				most[string(name)] = q
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(most)) {
		q := most[name]
		facts.pluginResources = append(facts.pluginResources, pluginResource{name, q.String()})
	}
	return facts, true
}

// handsOutGPUs tells whether an extended resource is one of NVIDIA's device plugin, or of one that goes by its names:
// nvidia.com/gpu, nvidia.com/gpu.shared, nvidia.com/mig-1g.10gb. Network cards are nvidia.com/..., too (hostdev and the
// like, of NVIDIA's network operator), and so are GPUs that are passed through to virtual machines, which the driver
// here does not see.
func handsOutGPUs(name string) bool {
	return strings.HasPrefix(name, "nvidia.com/gpu") || strings.HasPrefix(name, "nvidia.com/mig-")
}

// otherDevices takes what is needed of a slice of another driver.
func otherDevices(object any, driver string) ([]otherDevice, bool) {
	slice, ok := object.(*resourceapi.ResourceSlice)
	if !ok || slice.Spec.Driver == driver {
		return nil, false
	}
	var devices []otherDevice
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		if pci, ok := addressOf(d); ok {
			devices = append(devices, otherDevice{slice.Spec.Driver, d.Name, pci})
		}
	}
	return devices, len(devices) > 0
}

// addressOf is the PCI address of a device: that which it is published with, or that in its name, where it is named as
// Cleave names devices. Partitions have it there alone.
func addressOf(d *resourceapi.Device) (gpu.PCIAddress, bool) {
	text := ""
	if address := d.Attributes["resource.kubernetes.io/pciBusID"].StringValue; address != nil {
		text = *address
	} else if ownDevice.MatchString(d.Name) {
		parts := strings.SplitN(strings.TrimPrefix(d.Name, "gpu-"), "-", 5)
		text = parts[0] + ":" + parts[1] + ":" + parts[2] + "." + parts[3]
	}
	pci, err := gpu.ParsePCIAddress(text)
	return pci, err == nil
}
