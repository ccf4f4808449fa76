// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// What programs by others call of the simulated library: go-nvlib's device, and functions that DCGM, mig-parted and
// NVIDIA's tools read.
func TestSharedLibrary_OtherPrograms(t *testing.T) {
	needLibrary(t)
	if os.Getenv(asModel) == "" {
		inOwnProcess(t, "hgx-h100")
		return
	}
	root := filepath.Join(t.TempDir(), "root")
	node, err := sim.Create(root, "hgx-h100", sim.WithLibrary(built), sim.WithoutDeviceNodes())
	must(t, err)
	lib := gonvml.New(gonvml.WithLibraryPath(filepath.Join(root, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")))
	mustReturn(t, "Init", lib.Init())
	partition(t, node)
	must(t, node.Clients().Add(0, sim.Client{PID: 4711, Name: "python", GPUInstance: 1, ComputeInstance: 0}))

	gpus, err := device.New(lib).GetDevices()
	if err != nil || len(gpus) != 8 {
		t.Fatalf("go-nvlib finds %d GPUs, %v", len(gpus), err)
	}
	bus, err := gpus[0].GetPCIBusID()
	must(t, err)
	short, ret := lib.DeviceGetHandleByPciBusId(bus[len(bus)-len("1b:00.0"):])
	mustReturn(t, "DeviceGetHandleByPciBusId of "+bus, ret)
	if index, ret := short.GetIndex(); index != 0 || ret != gonvml.SUCCESS {
		t.Errorf("the short PCI address leads to GPU %d, %v", index, ret)
	}
	checkTelemetry(t, lib, gpus[0])
	checkMIGHandles(t, gpus[0])
	checkGPM(t, lib, gpus[0])
}

// partition makes partitions 1g at 0 and 3g at 4 on GPU 0.
func partition(t *testing.T, node *sim.Node) {
	t.Helper()
	setMIGMode(t, node, 0)
	for _, id := range []int{9, 19} {
		gi, err := node.Device(0).MIG().CreateGPUInstance(id)
		must(t, err)
		if _, err := gi.CreateComputeInstance(map[int]int{9: 2, 19: 0}[id]); err != nil {
			t.Fatal(err)
		}
	}
}

func mustReturn(t *testing.T, what string, ret gonvml.Return) {
	t.Helper()
	if ret != gonvml.SUCCESS {
		t.Fatalf("%s: %v", what, ret)
	}
}

func checkTelemetry(t *testing.T, lib gonvml.Interface, d device.Device) {
	t.Helper()
	name, ret := lib.SystemGetProcessName(4711)
	if name != "python" || ret != gonvml.SUCCESS {
		t.Errorf("process name %q, %v", name, ret)
	}
	if _, ret := lib.SystemGetProcessName(1 << 30); ret != gonvml.ERROR_NOT_FOUND {
		t.Errorf("name of a process that is none: %v", ret)
	}
	vbios, ret := d.GetVbiosVersion()
	if vbios == "" || ret != gonvml.SUCCESS {
		t.Errorf("VBIOS %q, %v", vbios, ret)
	}
	least, most, ret := d.GetPowerManagementLimitConstraints()
	if least == 0 || most <= least || ret != gonvml.SUCCESS {
		t.Errorf("power limits %d to %d, %v", least, most, ret)
	}
	numbers := map[string]func() (uint32, gonvml.Return){
		"SM clock":          func() (uint32, gonvml.Return) { return d.GetClockInfo(gonvml.CLOCK_SM) },
		"greatest SM clock": func() (uint32, gonvml.Return) { return d.GetMaxClockInfo(gonvml.CLOCK_SM) },
		"slowdown": func() (uint32, gonvml.Return) {
			return d.GetTemperatureThreshold(gonvml.TEMPERATURE_THRESHOLD_SLOWDOWN)
		},
		"PCIe generation":     narrow(d.GetCurrPcieLinkGeneration),
		"PCIe width":          narrow(d.GetCurrPcieLinkWidth),
		"greatest generation": narrow(d.GetMaxPcieLinkGeneration),
		"greatest width":      narrow(d.GetMaxPcieLinkWidth),
	}
	for what, get := range numbers {
		if v, ret := get(); v == 0 || ret != gonvml.SUCCESS {
			t.Errorf("%s: %d, %v", what, v, ret)
		}
	}
}

func narrow(get func() (int, gonvml.Return)) func() (uint32, gonvml.Return) {
	return func() (uint32, gonvml.Return) { v, ret := get(); return uint32(v), ret }
}

// checkMIGHandles calls what nvml.h allows on handles of partitions.
func checkMIGHandles(t *testing.T, d device.Device) {
	t.Helper()
	migs, err := d.GetMigDevices()
	if err != nil || len(migs) != 2 {
		t.Fatalf("go-nvlib finds %d partitions, %v", len(migs), err)
	}
	for i, m := range migs {
		if index, ret := m.GetIndex(); index != i || ret != gonvml.SUCCESS {
			t.Errorf("partition %d has index %d, %v", i, index, ret)
		}
		whole, _ := d.GetBAR1MemoryInfo()
		if bar1, ret := m.GetBAR1MemoryInfo(); bar1.Bar1Total == 0 || bar1.Bar1Total >= whole.Bar1Total || ret != gonvml.SUCCESS {
			t.Errorf("partition %d has %d bytes of BAR1, %v", i, bar1.Bar1Total, ret)
		}
		if profile, err := m.GetProfile(); err != nil {
			t.Errorf("partition %d has profile %v, %v", i, profile, err)
		}
	}
	// Hopper has a second profile of one compute slice.
	gi, ret := d.GetGpuInstanceById(1)
	mustReturn(t, "GetGpuInstanceById", ret)
	info, ret := gi.GetComputeInstanceProfileInfo(gonvml.COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1, gonvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
	if info.Id != 7 || info.InstanceCount != 1 || ret != gonvml.SUCCESS {
		t.Errorf("compute profile 1_SLICE_REV1 is %+v, %v", info, ret)
	}
}

func checkGPM(t *testing.T, lib gonvml.Interface, d device.Device) {
	t.Helper()
	support, ret := d.GpmQueryDeviceSupport()
	if support.IsSupportedDevice == 0 || ret != gonvml.SUCCESS {
		t.Fatalf("GPM support: %+v, %v", support, ret)
	}
	var samples [2]gonvml.GpmSample
	for i := range samples {
		samples[i], ret = lib.GpmSampleAlloc()
		mustReturn(t, "GpmSampleAlloc", ret)
		mustReturn(t, "GpmSampleGet", samples[i].Get(d))
	}
	graphics := func() gonvml.GpmMetric {
		get := &gonvml.GpmMetricsGetType{NumMetrics: 1, Sample1: samples[0], Sample2: samples[1]}
		get.Metrics[0].MetricId = uint32(gonvml.GPM_METRIC_GRAPHICS_UTIL)
		mustReturn(t, "GpmMetricsGet", lib.GpmMetricsGet(get))
		return get.Metrics[0]
	}
	m := graphics()
	for end := time.Now().Add(10 * time.Second); gonvml.Return(m.NvmlReturn) == gonvml.ERROR_UNKNOWN && time.Now().Before(end); m = graphics() {
		mustReturn(t, "GpmSampleGet", samples[1].Get(d)) // until it is of another reading of the counters than the first
	}
	if gonvml.Return(m.NvmlReturn) != gonvml.SUCCESS || m.Value <= 0 {
		t.Errorf("graphics utilisation %v, %v", m.Value, gonvml.Return(m.NvmlReturn))
	}
	for i := range samples {
		mustReturn(t, "GpmSampleFree", samples[i].Free())
	}
}
