// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// dice build a pool from the bytes of a fuzzer.
type dice struct {
	bytes []byte
}

func (d *dice) roll(sides int) int {
	if len(d.bytes) == 0 {
		return 0
	}
	b := d.bytes[0]
	d.bytes = d.bytes[1:]
	return int(b) % sides
}

func pick[T any](d *dice, of ...T) T { return of[d.roll(len(of))] }

func (d *dice) number() int64 {
	return pick[int64](d, 0, 1, 2, 3, 4, 7, 8, 31, 32, 63, -1, 1<<31-1, 1<<31, 1<<62, -1<<63, 1<<63-1)
}

func (d *dice) word() string {
	return pick(d, "", "a", "gpu-0000-1b-00-0", "gpu-0000-1b-00-0-mig-19-6", "mig", "gpu", "timeslice", "mps",
		"0000:1b:00.0", "1g.10gb", "1g.10gb+me",
		"+", ".", "NV", "NODE", "\x1b[2J", "x\nnewline", "\xff\xfe", "ünïcode", "0",
		"pci0000:15", "slice-7", "slice--1", "slice-99999999999999999999")
}

func (d *dice) quantity() resource.Quantity {
	return pick(d, resource.MustParse("0"), resource.MustParse("1"), resource.MustParse("-1"),
		resource.MustParse("79Gi"), resource.MustParse("500m"),
		resource.MustParse("9E"), resource.MustParse("9999999999999999999999"), resource.Quantity{})
}

func (d *dice) attribute() resourceapi.DeviceAttribute {
	switch d.roll(8) {
	case 0, 1:
		return resourceapi.DeviceAttribute{StringValue: ptr(d.word())}
	case 2, 3:
		return resourceapi.DeviceAttribute{IntValue: ptr(d.number())}
	case 4:
		return resourceapi.DeviceAttribute{BoolValue: ptr(d.roll(2) == 0)}
	case 5:
		return resourceapi.DeviceAttribute{VersionValue: ptr(d.word())}
	case 6:
		return resourceapi.DeviceAttribute{IntValues: []int64{d.number()}, StringValues: []string{d.word()}}
	default:
		return resourceapi.DeviceAttribute{}
	}
}

func (d *dice) device() resourceapi.Device {
	dev := resourceapi.Device{
		Name: d.word(), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{},
	}
	for range d.roll(12) {
		name := pick[resourceapi.QualifiedName](d, "type", "uuid", "parentUUID", "profile", "giProfileID", "placementStart",
			"placementSize", "productName",
			"index", "nvlinkCount", "nvlinkGroup", "pcieSwitch", "cpuAffinity", "migCapable", "resource.kubernetes.io/pciBusID", "fabricCliqueID",
			"resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode", testDriver+"/type", "driverVersion", "fabricClusterUUID")
		dev.Attributes[name] = d.attribute()
	}
	for range d.roll(4) {
		c := resourceapi.DeviceCapacity{Value: d.quantity()}
		if d.roll(2) == 0 {
			c.RequestPolicy = &resourceapi.CapacityRequestPolicy{Default: ptr(d.quantity())}
			if d.roll(2) == 0 {
				c.RequestPolicy.ValidRange = &resourceapi.CapacityRequestPolicyRange{Min: ptr(d.quantity())}
			}
		}
		dev.Capacity[pick[resourceapi.QualifiedName](d, "shares", "memory", "cores", "", testDriver+"/shares")] = c
	}
	for range d.roll(3) {
		dev.ConsumesCounters = append(dev.ConsumesCounters, resourceapi.DeviceCounterConsumption{CounterSet: d.word(), Counters: d.counters()})
	}
	for range d.roll(3) {
		dev.Taints = append(dev.Taints, resourceapi.DeviceTaint{Key: d.word(), Value: d.word(),
			Effect: resourceapi.DeviceTaintEffect(pick(d, "NoSchedule", "None", "", "?"))})
	}
	if d.roll(3) == 0 {
		dev.AllowMultipleAllocations = ptr(d.roll(2) == 0)
	}
	return dev
}

func (d *dice) counters() map[string]resourceapi.Counter {
	counters := map[string]resourceapi.Counter{}
	for range d.roll(4) {
		counters[d.word()] = resourceapi.Counter{Value: d.quantity()}
	}
	return counters
}

func (d *dice) pool() Pool {
	p := Pool{Node: testNode, Driver: testDriver}
	count := d.roll(4)
	for i := range count {
		s := resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}, Spec: resourceapi.ResourceSliceSpec{
			Driver: testDriver, NodeName: ptr(testNode),
			Pool: resourceapi.ResourcePool{Name: testNode, Generation: 1, ResourceSliceCount: int64(count)},
		}}
		for range d.roll(6) {
			s.Spec.Devices = append(s.Spec.Devices, d.device())
		}
		for range d.roll(3) {
			s.Spec.SharedCounters = append(s.Spec.SharedCounters, resourceapi.CounterSet{Name: d.word(), Counters: d.counters()})
		}
		p.Slices = append(p.Slices, s)
	}
	for range d.roll(5) {
		r := resourceapi.DeviceRequestAllocationResult{Driver: testDriver, Pool: testNode, Device: d.word()}
		for range d.roll(3) {
			r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{pick[resourceapi.QualifiedName](d, "shares",
				"memory", "cores"): d.quantity()}
		}
		if d.roll(3) == 0 {
			r.AdminAccess = ptr(d.roll(2) == 0)
		}
		p.Claims = append(p.Claims, allocated("n/"+d.word(), results{r}, d.word()))
	}
	return p
}

func FuzzOfPool(f *testing.F) {
	for seed := range 32 {
		var data []byte
		for i := range 600 {
			data = append(data, byte(seed*131+i*i*7+i>>3))
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := OfPool((&dice{data}).pool())
		if err != nil {
			return
		}
		for _, o := range []Options{{}, {Width: 3, ASCII: true, Wide: true}} {
			out := text(t, v, o)
			for _, r := range out {
				if r < ' ' && r != '\n' {
					t.Fatalf("%q reaches the terminal in\n%s", r, out)
				}
			}
			if strings.Contains(out, "\nnewline") {
				t.Fatalf("an attribute breaks the line in\n%s", out)
			}
		}
		if err := json.NewEncoder(io.Discard).Encode(v); err != nil {
			t.Errorf("encode: %v", err)
		}
	})
}
