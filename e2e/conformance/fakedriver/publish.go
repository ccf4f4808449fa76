// SPDX-License-Identifier: Apache-2.0

package fakedriver

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// publisher writes the ResourceSlices.
type publisher struct{ *Driver }

// exclusiveDevices is how many devices without counters there are.
const exclusiveDevices = 10

// publish brings the slices into the API server, in place of those that are there.
func (d publisher) publish(ctx context.Context) error {
	if err := d.deleteSlices(ctx); err != nil {
		return err
	}
	if d.is(PublishesNothing) {
		return nil
	}
	var failed []error
	specs := d.slices()
	for i, spec := range specs {
		node := Node
		spec.Driver, spec.NodeName = Name, &node
		spec.Pool = resourceapi.ResourcePool{Name: Node, Generation: 2, ResourceSliceCount: int64(len(specs))}
		if d.is(CountsSlicesWrong) {
			spec.Pool.ResourceSliceCount++
		}
		if d.is(OnOtherNode) && i == 0 {
			spec.NodeName, spec.NodeSelector = nil, otherNode()
		}
		failed = append(failed, d.createSlice(ctx, fmt.Sprintf("slice-%d", i), spec))
	}
	if d.is(KeepsStaleSlice) {
		stale := specs[0]
		stale.Driver, stale.AllNodes = Name, new(bool)
		stale.Pool = resourceapi.ResourcePool{Name: Node, Generation: 1, ResourceSliceCount: 1}
		failed = append(failed, d.createSlice(ctx, "slice-stale", stale))
	}
	return errors.Join(failed...)
}

// deleteSlices deletes them one by one: the clientset in memory does nothing for DeleteCollection.
func (d publisher) deleteSlices(ctx context.Context) error {
	client := d.client.ResourceV1().ResourceSlices()
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list slices: %w", err)
	}
	for _, s := range list.Items {
		if err := client.Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("delete slice %s: %w", s.Name, err)
		}
	}
	return nil
}

func (d publisher) createSlice(ctx context.Context, name string, spec resourceapi.ResourceSliceSpec) error {
	_, err := d.client.ResourceV1().ResourceSlices().Create(ctx, &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec,
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create slice %s: %w", name, err)
	}
	return nil
}

// slices are, in order: exclusive devices, a shared and a tainted one; counters; devices that consume them.
func (d publisher) slices() []resourceapi.ResourceSliceSpec {
	var first resourceapi.ResourceSliceSpec
	for i := range exclusiveDevices {
		if device := d.device(fmt.Sprintf("device-%d", i)); device != nil {
			first.Devices = append(first.Devices, *device)
		}
	}
	if d.has(Shares) {
		first.Devices = append(first.Devices, d.sharedDevice())
	}
	if d.is(PublishesInvalid) {
		first.Devices = append(first.Devices, resourceapi.Device{Name: "Not_A_Label"})
	}
	all := []resourceapi.ResourceSliceSpec{first}
	if d.has(Taints) {
		tainted := resourceapi.Device{Name: "tainted", Taints: []resourceapi.DeviceTaint{d.taint("example.com/old")}}
		if d.is(RepeatsTaint) {
			tainted.Taints = append(tainted.Taints, tainted.Taints[0])
		}
		all[0].Devices = append(all[0].Devices, tainted)
	}
	if d.has(Counters) {
		all = append(all, d.counters()...)
	}
	return all
}

// device is an exclusive one; nil if it is not published.
func (d publisher) device(name string) *resourceapi.Device {
	device := &resourceapi.Device{Name: name}
	if d.unhealthy(name) {
		if d.is(Unpublishes) {
			return nil
		}
		if !d.is(NoTaint) {
			device.Taints = []resourceapi.DeviceTaint{d.taint("example.com/unhealthy")}
		}
	}
	if d.is(Withdraws) && d.starts > 1 && d.inUse(name) {
		return nil
	}
	return device
}

func (d publisher) sharedDevice() resourceapi.Device {
	multiple, value, one := true, resource.MustParse("100"), resource.MustParse("10")
	if d.is(ShrinksCapacity) && d.inUse("shared") {
		value = resource.MustParse("5")
	}
	return resourceapi.Device{
		Name: "shared", AllowMultipleAllocations: &multiple,
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"memory": {Value: value, RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default: &one, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &one},
			}},
		},
	}
}

func (d publisher) taint(key string) resourceapi.DeviceTaint {
	added := metav1.NewTime(time.Now())
	if d.is(TaintsInFuture) {
		added = metav1.NewTime(time.Now().Add(time.Hour))
	}
	return resourceapi.DeviceTaint{Key: key, Effect: resourceapi.DeviceTaintEffectNoSchedule, TimeAdded: &added}
}

// counters are a slice of counter sets, and one of the devices that consume them: a whole and its halves.
func (d publisher) counters() []resourceapi.ResourceSliceSpec {
	set, total := "board", "100"
	if d.is(CountersBelowAllocated) {
		total = "60"
	}
	sets := []resourceapi.CounterSet{{Name: set, Counters: map[string]resourceapi.Counter{"memory": {Value: resource.MustParse(total)}}}}
	consumer := func(name, set, amount string) resourceapi.Device {
		return resourceapi.Device{Name: name, ConsumesCounters: []resourceapi.DeviceCounterConsumption{{
			CounterSet: set, Counters: map[string]resourceapi.Counter{"memory": {Value: resource.MustParse(amount)}},
		}}}
	}
	devices := []resourceapi.Device{consumer("half-0", set, "50"), consumer("half-1", set, "50")}
	switch {
	case d.is(ConsumesMore):
		devices = append(devices, consumer("whole", set, "101"))
	case d.is(ConsumesUnknownSet):
		devices = append(devices, consumer("whole", "no-such-set", "100"))
	case !d.is(CountersBelowAllocated):
		devices = append(devices, consumer("whole", set, "100"))
	}
	if d.is(RepeatsDevice) {
		devices = append(devices, consumer("device-0", set, "50"))
	}
	all := []resourceapi.ResourceSliceSpec{{SharedCounters: sets}, {Devices: devices}}
	if d.is(RepeatsCounterSet) {
		all = append(all, resourceapi.ResourceSliceSpec{SharedCounters: sets})
	}
	return all
}

// otherNode selects a node that is not there.
func otherNode() *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
		Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"node-2"},
	}}}}}
}
