// SPDX-License-Identifier: Apache-2.0

package nodeslices

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// semver is the pattern of https://semver.org, without suffixes.
var semver = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$`)

// identifier is a C identifier, as the API wants names after the domain.
var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// checkLimits holds slices against the limits of the API (k8s.io/api/resource/v1, types.go): one excess and the API
// server refuses the whole slice.
func checkLimits(t *testing.T, slices []Slice) {
	t.Helper()
	sets, names := map[string]bool{}, map[string]bool{}
	for _, s := range slices {
		if n := len(s.SharedCounters); n > resourceapi.ResourceSliceMaxCounterSets {
			t.Errorf("%d counter sets in a slice", n)
		}
		if n := len(s.Devices); n > resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures {
			t.Errorf("%d devices in a slice", n)
		}
		if len(s.Devices) > 0 && len(s.SharedCounters) > 0 {
			t.Error("a slice has both devices and counter sets")
		}
		for _, set := range s.SharedCounters {
			if msgs := validation.IsDNS1123Label(set.Name); len(msgs) > 0 || sets[set.Name] {
				t.Errorf("counter set %q is no DNS label or there twice", set.Name)
			}
			sets[set.Name] = true
			if n := len(set.Counters); n == 0 || n > resourceapi.ResourceSliceMaxCountersPerCounterSet {
				t.Errorf("counter set %s has %d counters", set.Name, n)
			}
			for name := range set.Counters {
				if msgs := validation.IsDNS1123Label(name); len(msgs) > 0 {
					t.Errorf("counter %q: %v", name, msgs)
				}
			}
		}
		for _, d := range s.Devices {
			if names[d.Name] {
				t.Errorf("device %s is there twice", d.Name)
			}
			names[d.Name] = true
			checkDevice(t, d)
		}
	}
	for _, s := range slices {
		for _, d := range s.Devices {
			for _, c := range d.ConsumesCounters {
				if !sets[c.CounterSet] {
					t.Errorf("device %s consumes of counter set %q, which no slice has", d.Name, c.CounterSet)
				}
			}
		}
	}
}

func checkDevice(t *testing.T, d resourceapi.Device) {
	t.Helper()
	if msgs := validation.IsDNS1123Label(d.Name); len(msgs) > 0 {
		t.Errorf("device name %q: %v", d.Name, msgs)
	}
	if n := len(d.Attributes) + len(d.Capacity); n > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		t.Errorf("device %s has %d attributes and capacities", d.Name, n)
	}
	all := 0
	for name, a := range d.Attributes {
		checkName(t, name)
		values := 0
		for _, set := range []bool{a.StringValue != nil, a.IntValue != nil, a.BoolValue != nil, a.VersionValue != nil, len(a.IntValues) > 0} {
			if set {
				values++
			}
		}
		all += max(1, len(a.IntValues))
		if values != 1 {
			t.Errorf("attribute %s of %s has %d values, want 1", name, d.Name, values)
		}
		if a.StringValue != nil && (*a.StringValue == "" || len(*a.StringValue) > resourceapi.DeviceAttributeMaxValueLength) {
			t.Errorf("attribute %s of %s is %d bytes long", name, d.Name, len(*a.StringValue))
		}
		if a.VersionValue != nil && (!semver.MatchString(*a.VersionValue) || len(*a.VersionValue) > resourceapi.DeviceAttributeMaxValueLength) {
			t.Errorf("attribute %s of %s is %q, no semantic version", name, d.Name, *a.VersionValue)
		}
	}
	if all > resourceapi.ResourceSliceMaxAttributeValuesPerDevice {
		t.Errorf("device %s has %d values of attributes", d.Name, all)
	}
	for name, c := range d.Capacity {
		checkName(t, name)
		if c.Value.Sign() < 0 {
			t.Errorf("capacity %s of %s is %s", name, d.Name, c.Value.String())
		}
		many := d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations
		if many != (c.RequestPolicy != nil) {
			// Without a policy, one claim would take all of it; with one, the API wants many claims.
			t.Errorf("capacity %s of %s, which many claims may have (%t), has the policy %v", name, d.Name, many, c.RequestPolicy)
		}
		if c.RequestPolicy != nil {
			checkRequestPolicy(t, d.Name+", "+string(name), c.Value, c.RequestPolicy)
		}
	}
}

// checkRequestPolicy is validateRequestPolicyRange of k8s.io/kubernetes/pkg/apis/resource/validation.
func checkRequestPolicy(t *testing.T, what string, all resource.Quantity, p *resourceapi.CapacityRequestPolicy) {
	t.Helper()
	if p.Default == nil || p.ValidRange == nil || p.ValidRange.Min == nil || len(p.ValidValues) > 0 {
		t.Errorf("%s: the policy %+v is no range with a default", what, p)
		return
	}
	total, byDefault, least, most := all.Value(), p.Default.Value(), p.ValidRange.Min.Value(), all.Value()
	if p.ValidRange.Max != nil {
		most = p.ValidRange.Max.Value()
	}
	if least < 1 || least > byDefault || byDefault > most || most > total {
		t.Errorf("%s: of %d, %d to %d with the default %d is no range", what, total, least, most, byDefault)
	}
	if p.ValidRange.Step == nil {
		return
	}
	step := p.ValidRange.Step.Value()
	if step < 1 || step > total-least || (byDefault-least)%step != 0 || p.ValidRange.Max != nil && (most-least)%step != 0 {
		t.Errorf("%s: of %d, steps of %d from %d do not lead to the default %d, or the first is too large", what, total, step, least, byDefault)
	}
}

func checkName(t *testing.T, name resourceapi.QualifiedName) {
	t.Helper()
	domain, id, qualified := strings.Cut(string(name), "/")
	if !qualified {
		domain, id = "", domain
	}
	if qualified && len(validation.IsDNS1123Subdomain(domain)) > 0 || len(domain) > resourceapi.DeviceMaxDomainLength {
		t.Errorf("name %q: its domain is none", name)
	}
	if len(id) > resourceapi.DeviceMaxIDLength || !identifier.MatchString(id) {
		t.Errorf("name %q: %q is no identifier", name, id)
	}
}

func TestLimits_WholeGPUs(t *testing.T) {
	for _, n := range []int{0, 1, 7, 8, 9, 16, 17, 63, 64, 65, 128, 129, 300} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			slices := slicesOf(t, nodeOf(n))
			checkLimits(t, slices)
			devices, sets := 0, 0
			for _, s := range slices {
				devices += len(s.Devices)
				sets += len(s.SharedCounters)
			}
			if devices != n || sets != 0 {
				t.Errorf("got %d devices and %d counter sets, want %d devices and none", devices, sets, n)
			}
		})
	}
}

func TestLimits_InvalidAttributes(t *testing.T) {
	fits, long := strings.Repeat("x", 64), strings.Repeat("x", 65)
	tests := map[string]struct {
		change func(node *gpu.Node, g *gpu.GPU)
		gone   []resourceapi.QualifiedName
	}{
		"all fit":      {func(*gpu.Node, *gpu.GPU) {}, nil},
		"longest name": {func(_ *gpu.Node, g *gpu.GPU) { g.ProductName = fits }, nil},
		"long name":    {func(_ *gpu.Node, g *gpu.GPU) { g.ProductName = long }, []resourceapi.QualifiedName{"productName"}},
		"long brand and architecture": {
			func(_ *gpu.Node, g *gpu.GPU) { g.Brand, g.Architecture = long, long },
			[]resourceapi.QualifiedName{"brand", "architecture"},
		},
		"no memory":           {func(_ *gpu.Node, g *gpu.GPU) { g.Memory = nil }, nil},
		"odd driver version":  {func(n *gpu.Node, _ *gpu.GPU) { n.DriverVersion = "580.95.05-beta" }, []resourceapi.QualifiedName{"driverVersion"}},
		"four-part version":   {func(n *gpu.Node, _ *gpu.GPU) { n.DriverVersion = "1.2.3.4" }, []resourceapi.QualifiedName{"driverVersion"}},
		"no driver version":   {func(n *gpu.Node, _ *gpu.GPU) { n.DriverVersion = "" }, []resourceapi.QualifiedName{"driverVersion"}},
		"CUDA version unread": {func(n *gpu.Node, _ *gpu.GPU) { n.CUDAVersion = gpu.Version{} }, []resourceapi.QualifiedName{"cudaDriverVersion"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			all := deviceOf(t, nodeOf(1)).Attributes
			node := nodeOf(1)
			tt.change(node.Node, &node.GPUs[0])
			got := deviceOf(t, node)
			checkLimits(t, slicesOf(t, node))
			want := map[resourceapi.QualifiedName]bool{}
			for n := range all {
				want[n] = true
			}
			for _, n := range tt.gone {
				delete(want, n)
			}
			have := map[resourceapi.QualifiedName]bool{}
			for n := range got.Attributes {
				have[n] = true
			}
			if diff := cmp.Diff(want, have); diff != "" {
				t.Errorf("attributes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLimits_MemoryOverflow(t *testing.T) {
	node := nodeOf(1)
	node.GPUs[0].Memory = ptr(uint64(1) << 63)
	checkLimits(t, slicesOf(t, node))
}

func TestSemanticVersions(t *testing.T) {
	tests := map[string]string{
		"580.95.05": "580.95.5", "580.95": "580.95.0", "580": "580.0.0", "9.0": "9.0.0", "000.00.01": "0.0.1", "550.163.01": "550.163.1",
		"": "", ".": "", "1.": "", "1..2": "", "1.2.3.4": "", "v1.2": "", "1.2-rc": "", "+1.2": "", "-1.2": "", " 1.2": "", "1.2 ": "",
		"1_0.2": "", "0x1.2": "", "4294967296.0.0": "", "4294967295.0.0": "4294967295.0.0", "１.2": "",
	}
	for in, want := range tests {
		if got := semantic(in); got != want {
			t.Errorf("semantic(%q): got %q, want %q", in, got, want)
		}
	}
}

func FuzzLimits(f *testing.F) {
	f.Add("580.95.05", "NVIDIA H100", "Hopper", "pci0000:15", int64(8), uint64(80<<30), 12080)
	f.Add("", "", "", "", int64(0), uint64(0), 0)
	f.Add("1.2.3.4", strings.Repeat("é", 33), "\x00", "\xff", int64(-1), ^uint64(0)>>1, -1)
	f.Fuzz(func(t *testing.T, version, product, arch, text string, numa int64, memory uint64, cuda int) {
		node := nodeOf(1)
		g := &node.GPUs[0]
		node.DriverVersion, node.CUDAVersion = version, gpu.Version{Major: cuda / 1000, Minor: cuda % 1000 / 10}
		g.ProductName, g.Architecture, g.PCIePath, g.NUMANode = product, arch, slices.Repeat([]string{text}, 6), ptr(int(numa))
		g.Memory, g.TotalMemory, g.CPUAffinity = ptr(memory>>1), ptr(memory), text
		g.NVLinks = &gpu.NVLinks{Active: int(numa), Version: node.CUDAVersion, MBps: numa, Switched: true}
		g.Fabric = &gpu.Fabric{ClusterUUID: text, CliqueID: int(numa)}
		checkLimits(t, slicesOf(t, node))
		checkLimits(t, Of(node, View{Compatible: true}))
	})
}
