// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/e2e/packing"
)

// addNVIDIANodes adds nodes of 8 H100 for which NVIDIA's own driver publishes.
func (b *bed) addNVIDIANodes(form packing.NVIDIA, names ...string) {
	b.t.Helper()
	node, err := packing.Inventory(b.t.Context(), "hgx-h100")
	must(b.t, err)
	published := form.Publish(node)
	for _, name := range names {
		b.addNode(name, packing.ForNode(published, name)...)
	}
}

// placed are the nodes of pods that are placed one after the other.
func (b *bed) placed(n int, class string, change ...func(*resourceapi.ResourceClaimSpec)) map[string]int {
	b.t.Helper()
	got := map[string]int{}
	for i := range n {
		node, _ := b.place(b.pod(fmt.Sprint(class, "-", i), class, change...))
		got[node]++
	}
	return got
}

// TestNVIDIA_Packs: devices of NVIDIA's own driver are packed where it publishes counters, shares or partitions, and whole GPUs
// without any where they are asked for.
func TestNVIDIA_Packs(t *testing.T) {
	half := func(s *resourceapi.ResourceClaimSpec) {
		s.Devices.Requests[0].Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": resource.MustParse("40Gi"),
		}}
	}
	for name, tt := range map[string]struct {
		form   packing.NVIDIA
		args   string
		class  string
		n      int
		change func(*resourceapi.ResourceClaimSpec)
		want   map[string]int
	}{
		"dynamic MIG":        {form: packing.NVIDIA{DynamicMIG: true}, class: "1g.10gb", n: 60, want: map[string]int{"n1": 56, "n2": 4}},
		"larger":             {form: packing.NVIDIA{DynamicMIG: true}, class: "2g.20gb", n: 30, want: map[string]int{"n1": 24, "n2": 6}},
		"whole, dynamic MIG": {form: packing.NVIDIA{DynamicMIG: true}, class: "gpu", n: 12, want: map[string]int{"n1": 8, "n2": 4}},
		"four at once":       {form: packing.NVIDIA{DynamicMIG: true}, class: "gpu", n: 3, change: count(4), want: map[string]int{"n1": 2, "n2": 1}},
		"static partitions":  {form: packing.NVIDIA{Static: 2}, class: "1g.10gb", n: 20, want: map[string]int{"n1": 14, "n2": 6}},
		"shares":             {form: packing.NVIDIA{Shares: "4"}, class: "gpu", n: 40, want: map[string]int{"n1": 32, "n2": 8}},
		"shares of memory": {form: packing.NVIDIA{DynamicMIG: true, Shares: "memory"}, class: "gpu", n: 9, change: half,
			want: map[string]int{"n1": 8, "n2": 1}},
		"whole, asked for": {form: packing.NVIDIA{}, args: `{"drivers": ["gpu.nvidia.com"]}`, class: "gpu", n: 10, want: map[string]int{"n1": 8, "n2": 2}},
		"spread": {form: packing.NVIDIA{DynamicMIG: true}, args: `{"strategy": "spread"}`, class: "1g.10gb", n: 8,
			want: map[string]int{"n1": 2, "n2": 2, "n3": 2, "n4": 2}},
	} {
		b := newBed(t, tt.args)
		b.addNVIDIANodes(tt.form, eight[:4]...)
		var change []func(*resourceapi.ResourceClaimSpec)
		if tt.change != nil {
			change = append(change, tt.change)
		}
		if diff := cmp.Diff(tt.want, b.placed(tt.n, nvidiaPrefix+tt.class, change...)); diff != "" {
			t.Errorf("%s: nodes (-want +got):\n%s", name, diff)
		}
	}
}

// TestNVIDIA_PassesThrough: pods for whole GPUs without counters see all nodes. Those that also want a channel of a compute domain are packed.
func TestNVIDIA_PassesThrough(t *testing.T) {
	channel := func(s *resourceapi.ResourceClaimSpec) {
		s.Devices.Requests = append(s.Devices.Requests, resourceapi.DeviceRequest{
			Name: "channel", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "channel"},
		})
	}
	for name, tt := range map[string]struct {
		form   packing.NVIDIA
		class  string
		change []func(*resourceapi.ResourceClaimSpec)
		want   string
	}{
		"whole":                  {form: packing.NVIDIA{}, class: "gpu", want: "Skip"},
		"whole and partitions":   {form: packing.NVIDIA{Static: 1}, class: "gpu", want: "n1 n2"},
		"GPU and channel":        {form: packing.NVIDIA{DynamicMIG: true}, class: "gpu", change: []func(*resourceapi.ResourceClaimSpec){channel}, want: "n1 n2"},
		"a profile that is gone": {form: packing.NVIDIA{DynamicMIG: true}, class: "5g.50gb", want: "Skip"},
		"slices for 1.34":        {form: packing.NVIDIA{DynamicMIG: true, Combined: true}, class: "1g.10gb", want: "Skip"},
	} {
		b := newBed(t, "")
		b.addNVIDIANodes(tt.form, "n1", "n2")
		for _, node := range []string{"n1", "n2"} {
			b.publish(computeDomain(node))
		}
		if _, got := b.preFilter(b.pod("pod", nvidiaPrefix+tt.class, tt.change...)); got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
}

// computeDomain is what the other half of NVIDIA's driver publishes for a node.
func computeDomain(node string) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{}
	s.Name = "compute-domain-" + node
	s.Spec.Driver, s.Spec.NodeName = "compute-domain.nvidia.com", &node
	s.Spec.Pool = resourceapi.ResourcePool{Name: node, ResourceSliceCount: 1}
	for _, kind := range []string{"channel", "daemon"} {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{
			Name: kind + "-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: &kind}},
		})
	}
	return s
}
