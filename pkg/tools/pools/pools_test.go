// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

const driver = "gpu.example.com"

// device is one with a type, a UUID of its own, and what it consumes of counter set "gpu-0".
func device(name, kind string, counters ...string) resourceapi.Device {
	uuid := "UUID-" + name
	d := resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"type": {StringValue: &kind}, "uuid": {StringValue: &uuid},
	}}
	if len(counters) > 0 {
		d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: "gpu-0", Counters: map[string]resourceapi.Counter{}}}
	}
	for _, c := range counters {
		d.ConsumesCounters[0].Counters[c] = resourceapi.Counter{Value: resource.MustParse("1")}
	}
	return d
}

// slicesOf are the slices of a node's pool: one of counters, and one for each list of devices.
func slicesOf(node string, generation int64, devices ...[]resourceapi.Device) []*resourceapi.ResourceSlice {
	var all []*resourceapi.ResourceSlice
	for i := range len(devices) + 1 {
		s := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &node,
			Pool: resourceapi.ResourcePool{Name: node, Generation: generation, ResourceSliceCount: int64(len(devices) + 1)},
		}}
		s.Name = fmt.Sprintf("%d-%s", i, node)
		if i == 0 {
			s.Spec.SharedCounters = []resourceapi.CounterSet{{Name: "gpu-0", Counters: map[string]resourceapi.Counter{
				"slice-0": {Value: resource.MustParse("1")}, "slice-1": {Value: resource.MustParse("1")},
			}}}
		} else {
			s.Spec.Devices = devices[i-1]
		}
		all = append(all, s)
	}
	return all
}

func oneGPU(node string, generation int64) []*resourceapi.ResourceSlice {
	return slicesOf(node, generation, []resourceapi.Device{device("whole", "gpu", "slice-0", "slice-1")},
		[]resourceapi.Device{device("half-1", "mig", "slice-1"), device("half-0", "mig", "slice-0")})
}

func class(expressions ...string) Classes {
	return func(string) (*resourceapi.DeviceClass, error) {
		c := &resourceapi.DeviceClass{}
		for _, e := range expressions {
			c.Spec.Selectors = append(c.Spec.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: e}})
		}
		return c, nil
	}
}

func claim(change ...func(*resourceapi.ExactDeviceRequest)) *resourceapi.ResourceClaimSpec {
	r := resourceapi.DeviceRequest{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu"}}
	for _, c := range change {
		c(r.Exactly)
	}
	return &resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{r}}}
}

func mustNode(t *testing.T, c *Cache, published []*resourceapi.ResourceSlice, rules ...*resourceapi.DeviceTaintRule) *Node {
	t.Helper()
	n, err := c.Node(published, rules...)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// matching are the names of the devices that a claim of a class matches.
func matching(t *testing.T, c *Cache, n *Node, classes Classes, spec *resourceapi.ResourceClaimSpec) (names []string) {
	t.Helper()
	d, err := NewDemand(classes, spec)
	if err != nil {
		t.Fatal(err)
	}
	requests, err := c.Requests(t.Context(), n, d)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n.objects {
		if requests[0].Match.Has(i) {
			names = append(names, n.objects[i].Name)
		}
	}
	return names
}

func TestNode_EqualNodesShareModel(t *testing.T) {
	c := NewCache()
	a, b := mustNode(t, c, oneGPU("a", 1)), mustNode(t, c, oneGPU("b", 7))
	other := oneGPU("c", 1)
	other[2].Spec.Devices = other[2].Spec.Devices[:1]
	if a.Model != b.Model || a.Model == mustNode(t, c, other).Model {
		t.Error("nodes that publish the same do not share a model, or others do")
	}
	want := []packing.Device{
		{Name: "whole", Shape: "gpu", Size: 2, Needs: []packing.Need{{Counter: 0, Amount: 1000}, {Counter: 1, Amount: 1000}}},
		{Name: "half-1", Shape: "mig", Size: 1, Needs: []packing.Need{{Counter: 1, Amount: 1000}}},
		{Name: "half-0", Shape: "mig", Size: 1, Needs: []packing.Need{{Counter: 0, Amount: 1000}}},
	}
	if diff := cmp.Diff(want, a.Model.Devices); diff != "" || !a.Counted {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if at, ok := a.Device("a", "half-0"); !ok || a.Pool(at) != "a" || a.Object(at).Name != "half-0" {
		t.Errorf("device half-0 is %d, %t", at, ok)
	}
}

func TestNode_PoolNotWhole(t *testing.T) {
	broken := func(change func([]*resourceapi.ResourceSlice)) []*resourceapi.ResourceSlice {
		all := oneGPU("a", 2)
		change(all)
		return all
	}
	for name, published := range map[string][]*resourceapi.ResourceSlice{
		"none":          nil,
		"slice missing": oneGPU("a", 2)[:2],
		"device twice":  broken(func(all []*resourceapi.ResourceSlice) { all[2].Spec.Devices[1].Name = "whole" }),
	} {
		if _, err := NewCache().Node(published); !errors.Is(err, ErrIncomplete) {
			t.Errorf("%s: got %v, want ErrIncomplete", name, err)
		}
	}
	if _, err := NewCache().Node(broken(func(all []*resourceapi.ResourceSlice) { all[1].Spec.NodeName = nil })); !errors.Is(err, ErrUnpredictable) {
		t.Errorf("a slice of no node: got %v, want ErrUnpredictable", err)
	}
}

func TestNode_Taints(t *testing.T) {
	published := oneGPU("a", 1)
	published[1].Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: "broken", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	name, other := "half-1", "other"
	rule := &resourceapi.DeviceTaintRule{}
	rule.Spec.Taint = resourceapi.DeviceTaint{Key: "upkeep", Effect: resourceapi.DeviceTaintEffectNoExecute}
	rule.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Device: &name}
	elsewhere := rule.DeepCopy()
	elsewhere.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Pool: &other}
	c := NewCache()
	n := mustNode(t, c, published, rule, elsewhere)
	s := n.NewState()
	var tainted []string
	for i := range n.objects {
		if s.Tainted(i) {
			tainted = append(tainted, n.objects[i].Name)
		}
	}
	if diff := cmp.Diff([]string{"whole", "half-1"}, tainted); diff != "" {
		t.Errorf("tainted (-want +got):\n%s", diff)
	}
	d, err := NewDemand(class("true"), claim(func(r *resourceapi.ExactDeviceRequest) {
		r.Count = 2
		r.Tolerations = []resourceapi.DeviceToleration{{Key: "upkeep", Operator: resourceapi.DeviceTolerationOpExists}}
	}))
	if err != nil {
		t.Fatal(err)
	}
	requests, err := c.Requests(t.Context(), n, d)
	if err != nil {
		t.Fatal(err)
	}
	if uses, ok, err := s.Fit(requests...); !ok || err != nil || uses[0].Device != 1 || uses[1].Device != 2 {
		t.Errorf("with a toleration: %v, %t, %v", uses, ok, err)
	}
}

func TestNode_Uses(t *testing.T) {
	n := mustNode(t, NewCache(), oneGPU("a", 1))
	yes := true
	got := n.Uses([]resourceapi.DeviceRequestAllocationResult{
		{Driver: driver, Pool: "a", Device: "half-1"}, {Driver: driver, Pool: "b", Device: "half-1"},
		{Driver: "nic.example.com", Pool: "a", Device: "half-1"}, {Driver: driver, Pool: "a", Device: "gone"},
		{Driver: driver, Pool: "a", Device: "whole", AdminAccess: &yes},
	})
	if diff := cmp.Diff([]packing.Use{{Device: 1}}, got); diff != "" {
		t.Errorf("uses (-want +got):\n%s", diff)
	}
}

func TestRequests_Selectors(t *testing.T) {
	c := NewCache()
	n := mustNode(t, c, oneGPU("a", 1))
	for expression, want := range map[string][]string{
		`device.driver == "gpu.example.com"`:                                             {"whole", "half-1", "half-0"},
		`device.driver == "gpu.nvidia.com"`:                                              nil,
		`device.attributes["gpu.example.com"].type == "mig"`:                             {"half-1", "half-0"},
		`device.attributes["gpu.example.com"]["type"] == "gpu"`:                          {"whole"},
		`device.attributes["gpu.example.com"].?uuid.orValue("") == "UUID-half-0"`:        {"half-0"},
		`has(device.attributes["gpu.example.com"].nvlinkGroup)`:                          nil,
		`"type" in device.attributes["gpu.example.com"]`:                                 {"whole", "half-1", "half-0"},
		`["a", "mig"].exists(x, x == device.attributes["gpu.example.com"].type)`:         {"half-1", "half-0"},
		`cel.bind(a, device.attributes["gpu.example.com"], a.uuid.startsWith("UUID-w"))`: {"whole"},
		`device.allowMultipleAllocations`:                                                nil,
	} {
		if diff := cmp.Diff(want, matching(t, c, n, class(expression), claim())); diff != "" {
			t.Errorf("%s (-want +got):\n%s", expression, diff)
		}
	}
	d, err := NewDemand(class(`device.attributes["gpu.example.com"].none == "x"`), claim())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Requests(t.Context(), n, d); err == nil {
		t.Error("a selector that fails at run time gives no error")
	}
}

func TestNewDemand(t *testing.T) {
	yes := true
	constrained, later, many := claim(), claim(), claim()
	constrained.Devices.Constraints = make([]resourceapi.DeviceConstraint, 1)
	later.Devices.Requests[0].Exactly = nil
	for range maxRequests {
		many.Devices.Requests = append(many.Devices.Requests, many.Devices.Requests[0])
	}
	for name, spec := range map[string]*resourceapi.ResourceClaimSpec{
		"unknown constraint": constrained, "unknown request": later, "many requests": many,
		"all":         claim(func(r *resourceapi.ExactDeviceRequest) { r.AllocationMode = resourceapi.DeviceAllocationModeAll }),
		"admin":       claim(func(r *resourceapi.ExactDeviceRequest) { r.AdminAccess = &yes }),
		"33 devices":  claim(func(r *resourceapi.ExactDeviceRequest) { r.Count = 33 }),
		"no selector": claim(func(r *resourceapi.ExactDeviceRequest) { r.Selectors = make([]resourceapi.DeviceSelector, 1) }),
	} {
		if _, err := NewDemand(class("true"), spec); !errors.Is(err, ErrUnpredictable) {
			t.Errorf("%s: got %v, want ErrUnpredictable", name, err)
		}
	}
	missing := func(string) (*resourceapi.DeviceClass, error) { return nil, errors.New("not found") }
	if _, err := NewDemand(missing, claim()); err == nil || errors.Is(err, ErrUnpredictable) {
		t.Errorf("a class that does not exist: got %v", err)
	}
	one, err := NewDemand(class("true"), claim())
	same, errSame := NewDemand(class("true"), claim(func(r *resourceapi.ExactDeviceRequest) { r.Count = 1 }))
	other, errOther := NewDemand(class("false"), claim())
	if err := errors.Join(err, errSame, errOther); err != nil || one.Key != same.Key || one.Key == other.Key {
		t.Errorf("keys %s, %s and %s, %v", one.Key, same.Key, other.Key, err)
	}
}

func TestAmountOf(t *testing.T) {
	q := resource.MustParse
	ranged := resourceapi.DeviceCapacity{Value: q("100"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
		Default: new(q("10")), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: new(q("2")), Max: new(q("20")), Step: new(q("4"))},
	}}
	valued := resourceapi.DeviceCapacity{Value: q("100"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
		ValidValues: []resource.Quantity{q("1"), q("30")},
	}}
	plain := resourceapi.DeviceCapacity{Value: q("100")}
	for _, tt := range []struct {
		capacity resourceapi.DeviceCapacity
		request  string
		want     int64
		ok       bool
	}{
		{ranged, "", 10_000, true}, {ranged, "1", 2000, true}, {ranged, "3", 6000, true}, {ranged, "6", 6000, true},
		{ranged, "19", 22_000, false},
		{valued, "1", 1000, true}, {valued, "2", 30_000, true}, {valued, "31", 0, false}, {valued, "", 100_000, true},
		{plain, "", 100_000, true}, {plain, "1500m", 1500, true}, {plain, "99999999999999999999", 2305843009213693000, true},
	} {
		requests := map[resourceapi.QualifiedName]resource.Quantity{}
		if tt.request != "" {
			requests["memory"] = q(tt.request)
		}
		if got, ok := amountOf(requests, "memory", tt.capacity); ok != tt.ok || got != tt.want {
			t.Errorf("%q of %v: got %d, %t, want %d, %t", tt.request, tt.capacity, got, ok, tt.want, tt.ok)
		}
	}
}

// Partitions of a layout consume no counters and have no PCI address: their names say which GPU they are of.
func TestNode_PartitionsWithoutCounters(t *testing.T) {
	var parts []resourceapi.Device
	for _, name := range []string{"gpu-0000-1b-00-0-mig-19-6", "gpu-0000-1b-00-0-mig-19-5", "gpu-0000-43-00-0-mig-19-6"} {
		d := device(name, "mig")
		d.Attributes["parentUUID"] = resourceapi.DeviceAttribute{StringValue: &name}
		parts = append(parts, d)
	}
	n := mustNode(t, NewCache(), slicesOf("n", 1, parts))
	var gpus []string
	for _, g := range n.Model.GPUs {
		gpus = append(gpus, g.Name)
	}
	if diff := cmp.Diff([]string{"gpu-0000-1b-00-0", "gpu-0000-43-00-0"}, gpus); diff != "" || !n.Counted {
		t.Errorf("counted: %t, GPUs (-want +got):\n%s", n.Counted, diff)
	}
}
