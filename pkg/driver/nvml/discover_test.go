// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// equal fails unless the two are equal.
func equal(t testing.TB, what string, want, got any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func ptr[T any](v T) *T { return &v }

// wantH100 is what h100(i) is read as.
func wantH100(i int) gpu.GPU {
	g := gpu.GPU{
		PCI: gpu.PCIAddress{Bus: uint8(0x18 + 0x10*i)}, UUID: h100(i).uuid, Index: i, Minor: i,
		ProductName: "NVIDIA H100 80GB HBM3", Brand: "Nvidia", Architecture: "Hopper", ComputeCapability: &gpu.Version{Major: 9},
		Memory: ptr(uint64(79 << 30)), TotalMemory: ptr(uint64(80 << 30)), ECC: ptr(true), AddressingMode: "HMM",
		PCIDeviceID: 0x233010de, PCISubsystemID: 0x16c110de, NVLinks: &gpu.NVLinks{Active: 3, Version: gpu.Version{Major: 4}, MBps: 3 * 26562, Switched: true},
	}
	g.MIG = gpu.MIG{Capable: true, Slices: 8, Profiles: []gpu.Profile{
		{ID: 19, Enum: 0, Name: "1g.10gb", ComputeSlices: 1, MaxInstances: 7, Memory: 10 << 30},
		{ID: 0, Enum: 4, Name: "7g.80gb", ComputeSlices: 7, MaxInstances: 1, Memory: 80 << 30, Placements: []gpu.Placement{{Start: 0, Size: 8}}},
	}}
	for s := range 7 {
		g.MIG.Profiles[0].Placements = append(g.MIG.Profiles[0].Placements, gpu.Placement{Start: s, Size: 1})
	}
	return g
}

func mustDiscover(t *testing.T, lib *fakeLibrary) *gpu.Node {
	t.Helper()
	d, err := discover(t.Context(), lib, noSysfs())
	if err != nil {
		t.Fatalf("discover: %v", err)
	}
	return &d.node
}

func TestDiscover(t *testing.T) {
	want := gpu.Node{DriverVersion: "580.95.05", CUDAVersion: gpu.Version{Major: 12, Minor: 8}, GPUs: []gpu.GPU{wantH100(0)}}
	got := mustDiscover(t, &fakeLibrary{devices: []*fakeDevice{h100(0)}})
	equal(t, "node", &want, got)
}

func TestDiscover_Order(t *testing.T) {
	got := mustDiscover(t, &fakeLibrary{devices: []*fakeDevice{h100(2), h100(0), h100(1)}})
	var order []int
	for _, g := range got.GPUs {
		order = append(order, g.Index)
	}
	equal(t, "NVML indexes in order of PCI address", []int{1, 2, 0}, order)
}

func TestDiscover_UnsupportedAttributes(t *testing.T) {
	tests := map[string]struct {
		fails  []string
		change func(g *gpu.GPU)
	}{
		"brand":        {[]string{"Brand"}, func(g *gpu.GPU) { g.Brand = "" }},
		"architecture": {[]string{"Architecture"}, func(g *gpu.GPU) { g.Architecture = "" }},
		"compute capability": {[]string{"CUDAComputeCapability"}, func(g *gpu.GPU) {
			g.ComputeCapability = nil
			g.MIG.NeedsReset = true // nothing says that it does not
		}},
		"memory v2: v1 is asked": {[]string{"MemoryTotalReserved"}, func(g *gpu.GPU) { g.Memory = ptr(uint64(80 << 30)) }},
		"memory at all": {[]string{"MemoryTotalReserved", "MemoryTotal"}, func(g *gpu.GPU) {
			g.Memory, g.TotalMemory = nil, nil
			for i := range g.MIG.Profiles {
				g.MIG.Profiles[i].Name = "" // it follows from the memory
			}
		}},
		"ECC":               {[]string{"ECCMode"}, func(g *gpu.GPU) { g.ECC = nil }},
		"addressing mode":   {[]string{"AddressingMode"}, func(g *gpu.GPU) { g.AddressingMode = "" }},
		"NVLink":            {[]string{"NVLinkState"}, func(g *gpu.GPU) { g.NVLinks = nil }},
		"field of speed":    {[]string{"field 90"}, func(g *gpu.GPU) { g.NVLinks.MBps = 0 }},
		"MIG":               {[]string{"MIGMode"}, func(g *gpu.GPU) { g.MIG = gpu.MIG{} }},
		"MIG profiles":      {[]string{"GPUInstanceProfileInfo"}, func(g *gpu.GPU) { g.MIG = gpu.MIG{Capable: true} }},
		"MIG placements":    {[]string{"GPUInstancePossiblePlacements"}, func(g *gpu.GPU) { g.MIG = gpu.MIG{Capable: true} }},
		"one MIG profile":   {[]string{"GPUInstanceProfileInfo(0)"}, func(g *gpu.GPU) { g.MIG.Profiles = g.MIG.Profiles[1:] }},
		"placements of one": {[]string{"GPUInstancePossiblePlacements(19)"}, func(g *gpu.GPU) { g.MIG.Profiles = g.MIG.Profiles[1:] }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d, want := h100(0), wantH100(0)
			for _, call := range tt.fails {
				d.errs[call] = gpu.ErrNotSupported
			}
			tt.change(&want)
			got := mustDiscover(t, &fakeLibrary{devices: []*fakeDevice{d}})
			equal(t, "GPUs", []gpu.GPU{want}, got.GPUs)
		})
	}
}

func TestDiscover_UnidentifiableGPU(t *testing.T) {
	fails := func(call string, err error) func(*fakeDevice) {
		return func(d *fakeDevice) { d.errs[call] = err }
	}
	// An integrated GPU has no PCI address, and programs know it by its name (go-nvlib, IsIntegratedGPUName).
	jetson := func(product string) func(*fakeDevice) {
		return func(d *fakeDevice) { d.product, d.errs["PCIInfo"] = product, gpu.ErrNotSupported }
	}
	unknown := errors.New("unknown error")
	for name, tt := range map[string]struct {
		spoil func(*fakeDevice)
		says  []string
	}{
		"no PCI address": {fails("PCIInfo", unknown), []string{"unknown error"}},
		"odd address":    {func(d *fakeDevice) { d.bus = "nonsense" }, []string{"nonsense"}},
		// A device name that is there twice makes the API server's helper refuse the slices of all GPUs.
		"address of another GPU": {func(d *fakeDevice) { d.bus = h100(0).bus }, []string{"0000:18:00.0"}},
		"UUID unknown":           {fails("UUID", unknown), []string{"unknown error"}},
		"no UUID":                {func(d *fakeDevice) { d.uuid = "" }, []string{"UUID"}},
		"no minor number":        {fails("MinorNumber", unknown), []string{"unknown error"}},
		"Orin":                   {jetson("Orin (nvgpu)"), []string{"Orin (nvgpu)", "Jetson", "device plugin"}},
		"Thor":                   {jetson("NVIDIA Thor"), []string{"NVIDIA Thor", "Jetson", "device plugin"}},
	} {
		t.Run(name, func(t *testing.T) {
			broken := h100(1)
			tt.spoil(broken)
			wantProblem(t, &fakeLibrary{devices: []*fakeDevice{h100(0), broken, h100(2)}}, append(tt.says, "GPU 1")...)
		})
	}
	t.Run("handle", func(t *testing.T) {
		lib := &fakeLibrary{devices: []*fakeDevice{h100(0), h100(1), h100(2)}, errs: map[string]error{"DeviceByIndex(1)": gpu.ErrLost}}
		wantProblem(t, lib, "GPU 1", "lost")
	})
}

// wantProblem fails unless GPU 1 is a problem that says all this, and GPUs 0 and 2 are served.
func wantProblem(t *testing.T, lib *fakeLibrary, says ...string) {
	t.Helper()
	node := mustDiscover(t, lib)
	equal(t, "GPUs", []gpu.GPU{wantH100(0), wantH100(2)}, node.GPUs)
	if len(node.Problems) != 1 || node.Problems[0].Index != 1 {
		t.Fatalf("got problems %v, want one, of GPU 1", node.Problems)
	}
	for _, s := range says {
		if !strings.Contains(node.Problems[0].Err.Error(), s) {
			t.Errorf("problem %q does not say %q", node.Problems[0].Err, s)
		}
	}
}

// A lost GPU answers every call so: none of its attributes is merely "not supported".
func TestDiscover_LostGPU(t *testing.T) {
	for _, call := range []string{
		"PCIInfo", "UUID", "MinorNumber", "Name", "Brand", "Architecture", "CUDAComputeCapability", "MemoryTotalReserved", "ECCMode",
		"AddressingMode", "NVLinkState", "NVLinkState(2)", "NVLinkVersion", "NVLinkRemoteDeviceType", "FieldValues", "FabricInfo", "MIGMode",
		"GPUInstanceProfileInfo", "GPUInstancePossiblePlacements",
	} {
		t.Run(call, func(t *testing.T) {
			lost := h100(1)
			lost.errs[call] = gpu.ErrLost
			lib := &fakeLibrary{devices: []*fakeDevice{h100(0), lost, h100(2)}}
			wantProblem(t, lib, "lost")
			if node := mustDiscover(t, lib); !errors.Is(node.Problems[0].Err, gpu.ErrLost) {
				t.Errorf("got %v, want it to wrap %v", node.Problems[0].Err, gpu.ErrLost)
			}
		})
	}
}

func TestDiscover_PlacementUnits(t *testing.T) {
	for _, units := range []int{4, 8, 12} {
		d := h100(0)
		d.setBoard(units)
		got := mustDiscover(t, &fakeLibrary{devices: []*fakeDevice{d}}).GPUs[0].MIG
		if got.Slices != units {
			t.Errorf("got %d units, want %d", got.Slices, units)
		}
		first := got.Profiles[0].Placements
		for i := 1; i < len(first); i++ {
			if first[i-1].Start >= first[i].Start {
				t.Errorf("%d units: placements %v, want them in ascending start", units, first)
			}
		}
	}
}

// Compute engines that do graphics are counted by nothing but the driver's number of instances; placements allow more here.
func TestDiscover_GraphicsInstances(t *testing.T) {
	d := h100(0)
	const enum, id = 10, 47 // NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX
	d.profiles[enum] = gpu.Profile{ID: id, ComputeSlices: 1, MaxInstances: 1, Memory: 10 << 30}
	d.placements[id] = d.placements[19]
	g := &mustDiscover(t, &fakeLibrary{devices: []*fakeDevice{d}}).GPUs[0]
	var graphics []gpu.Shape
	for _, s := range g.PartitionShapes() {
		if s.Profile.Name == "1g.10gb+gfx" {
			graphics = append(graphics, s)
		}
	}
	if len(graphics) != 7 {
		t.Fatalf("got %d placements with graphics, want 7", len(graphics))
	}
	if gpu.Coexist(graphics[:2], g.Counters()) {
		t.Errorf("counters %v admit two partitions with graphics, and the driver one", g.Counters())
	}
}

func TestDiscover_DriverFails(t *testing.T) {
	for _, call := range []string{"SystemDriverVersion", "SystemCUDADriverVersion", "DeviceCount"} {
		lib := &fakeLibrary{devices: []*fakeDevice{h100(0)}, errs: map[string]error{call: gpu.ErrDriverNotLoaded}}
		if _, err := discover(t.Context(), lib, noSysfs()); !errors.Is(err, gpu.ErrDriverNotLoaded) {
			t.Errorf("%s: got %v, want %v", call, err, gpu.ErrDriverNotLoaded)
		}
	}
}

// NVML asks libcuda for its version and answers NOT_FOUND where it cannot load it.
func TestDiscover_CUDAVersionUnknown(t *testing.T) {
	for _, unknown := range []error{gpu.ErrNotFound, gpu.ErrLibraryNotFound, gpu.ErrNotSupported} {
		lib := &fakeLibrary{devices: []*fakeDevice{h100(0)}, errs: map[string]error{"SystemCUDADriverVersion": unknown}}
		if got := mustDiscover(t, lib); got.CUDAVersion != (gpu.Version{}) || len(got.GPUs) != 1 {
			t.Errorf("%v: got CUDA %v and %d GPUs, want the GPU and no version", unknown, got.CUDAVersion, len(got.GPUs))
		}
	}
}

func TestDiscover_NoGPUs(t *testing.T) {
	if got := mustDiscover(t, &fakeLibrary{}); len(got.GPUs) != 0 || len(got.Problems) != 0 {
		t.Errorf("got %v, want nothing", got)
	}
}

func TestDiscover_ContextCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := discover(ctx, &fakeLibrary{devices: []*fakeDevice{h100(0)}}, noSysfs()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// A driver that answers success, and does nothing, is not believed.
func TestSetMIG_NothingChanged(t *testing.T) {
	if _, err := setMIG(t.Context(), fakeMIG{d: &fakeDevice{}}, gpu.PCIAddress{}, true); err == nil {
		t.Error("the mode is set, by a driver that has not changed it")
	}
}
