// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// facts are the answers of a GPU.
type facts struct {
	Bus, Name         string
	Minor             int
	Brand, Arch       int
	Capability        [2]int
	Total, Reserved   uint64
	ECC               bool
	Addressing        int
	Link0             bool
	MIGCapable, MIGOn bool
}

func readFacts(t *testing.T, d *Device) facts {
	t.Helper()
	var f facts
	var errs [12]error
	f.Bus, errs[0] = d.PCIBusID()
	f.Name, errs[1] = d.Name()
	f.Minor, errs[2] = d.MinorNumber()
	f.Brand, errs[3] = d.Brand()
	f.Arch, errs[4] = d.Architecture()
	f.Capability[0], f.Capability[1], errs[5] = d.CUDAComputeCapability()
	f.Total, f.Reserved, errs[6] = d.Memory().MemoryTotalReserved()
	f.ECC, _, errs[7] = d.Memory().ECCMode()
	f.Addressing, errs[8] = d.Modes().AddressingMode()
	var err error
	if f.Link0, err = d.Links().NVLinkState(0); !errors.Is(err, gpu.ErrNotSupported) {
		errs[9] = err
	}
	f.MIGOn, _, err = d.MIG().MIGMode()
	if f.MIGCapable = err == nil; !errors.Is(err, gpu.ErrNotSupported) {
		errs[10] = err
	}
	must(t, errors.Join(errs[:]...))
	return f
}

func TestDevices(t *testing.T) {
	tests := []struct {
		model string
		index int
		want  facts
	}{
		{"hgx-h100", 4, facts{"00000000:9D:00.0", "NVIDIA H100 80GB HBM3", 5, 14, 9, [2]int{9, 0}, 81559 << 20, 558 << 20, true, 1, true, true, false}},
		{"dgx-a100", 0, facts{"00000000:07:00.0", "NVIDIA A100-SXM4-80GB", 2, 14, 7, [2]int{8, 0}, 81920 << 20, 633 << 20, true, 1, true, true, false}},
		{"a100-pcie-nvlink-pairs", 3, facts{"00000000:E3:00.0", "NVIDIA A100 80GB PCIe", 2, 14, 7, [2]int{8, 0}, 81920 << 20, 633 << 20, true, 1, true, true, false}},
		{"a30", 1, facts{"00000000:D8:00.0", "NVIDIA A30", 1, 14, 7, [2]int{8, 0}, 24576 << 20, 425 << 20, true, 1, false, true, false}},
		{"gb200-nvl72", 2, facts{"00000018:01:00.0", "NVIDIA GB200", 2, 14, 10, [2]int{10, 0}, 189471 << 20, 683 << 20, true, 2, true, true, false}},
		{"rtx-pro-6000", 7, facts{"00000000:D6:00.0", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 7, 14, 10, [2]int{12, 0}, 97887 << 20, 636 << 20, true, 1, false, true, false}},
		{"l40s", 0, facts{"00000000:4A:00.0", "NVIDIA L40S", 1, 14, 8, [2]int{8, 9}, 46068 << 20, 612 << 20, true, 1, false, false, false}},
		{"t4", 0, facts{"00000000:00:1E.0", "Tesla T4", 0, 2, 6, [2]int{7, 5}, 15360 << 20, 431 << 20, true, 0, false, false, false}},
	}
	for _, tt := range tests {
		d, err := testNode(t, tt.model).DeviceByIndex(tt.index)
		must(t, err)
		if diff := cmp.Diff(tt.want, readFacts(t, d)); diff != "" {
			t.Errorf("GPU %d of %s (-want +got):\n%s", tt.index, tt.model, diff)
		}
	}
}

func TestSessions(t *testing.T) {
	n, err := New("t4")
	must(t, err)
	if _, err := n.DeviceCount(); !isCode(err, CodeUninitialized) {
		t.Errorf("DeviceCount before Init = %v", err)
	}
	for range 2 {
		must(t, n.Init())
	}
	must(t, n.Shutdown())
	if v, err := n.SystemDriverVersion(); v != "580.95.05" || err != nil {
		t.Errorf("SystemDriverVersion = %q, %v", v, err)
	}
	if v, err := n.SystemCUDADriverVersion(); v != 13000 || err != nil {
		t.Errorf("SystemCUDADriverVersion = %d, %v", v, err)
	}
	if _, err := n.DeviceByIndex(1); !errors.Is(err, gpu.ErrInvalidArgument) {
		t.Errorf("DeviceByIndex(1) = %v", err)
	}
	must(t, n.Shutdown())
	if err := n.Shutdown(); !isCode(err, CodeUninitialized) {
		t.Errorf("Shutdown once too often = %v", err)
	}
}

func TestFind(t *testing.T) {
	n := testNode(t, "hgx-h100")
	for _, id := range []string{"0000:52:00.0", "00000000:52:00.0"} {
		if d, err := n.DeviceByPCIBusID(id); err != nil || d != n.Device(2) {
			t.Errorf("DeviceByPCIBusID(%s) = %v, %v", id, d, err)
		}
	}
	if _, err := n.DeviceByPCIBusID("0000:53:00.0"); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("DeviceByPCIBusID of nothing = %v", err)
	}
	if _, err := n.DeviceByPCIBusID("gpu 3"); !errors.Is(err, gpu.ErrInvalidArgument) {
		t.Errorf("DeviceByPCIBusID of nonsense = %v", err)
	}
	uuid, err := n.Device(5).UUID()
	must(t, err)
	if d, _, err := n.DeviceByUUID(uuid); err != nil || d != n.Device(5) {
		t.Errorf("DeviceByUUID(%s) = %v, %v", uuid, d, err)
	}
	for _, nobody := range []string{"GPU-0", "MIG-0"} {
		if _, _, err := n.DeviceByUUID(nobody); !errors.Is(err, gpu.ErrNotFound) {
			t.Errorf("DeviceByUUID(%s) = %v", nobody, err)
		}
	}
}

func TestCalls_Counted(t *testing.T) {
	n := testNode(t, "t4")
	n.Calls().Reset()
	for range 3 {
		if _, err := n.Device(0).UUID(); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := n.Device(0).MIG().MIGMode(); err == nil {
		t.Fatal("T4 has MIG")
	}
	got := []int64{n.Calls().Of("nvmlDeviceGetUUID"), n.Calls().Of("nvmlDeviceGetMigMode"), n.Calls().Total()}
	if diff := cmp.Diff([]int64{3, 1, 4}, got); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestTrace(t *testing.T) {
	var trace strings.Builder
	n := testNode(t, "l40s", WithTrace(&trace))
	if _, err := n.Device(2).UUID(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("nvmlInit_v2 -1\nnvmlDeviceGetUUID 2\n", trace.String()); diff != "" {
		t.Errorf("trace (-want +got):\n%s", diff)
	}
}

func TestClients(t *testing.T) {
	n := testNode(t, "hgx-h100")
	d := n.Device(0)
	for _, c := range []Client{
		{PID: 90, Name: "python", Memory: 1 << 30, GPUInstance: -1, ComputeInstance: -1},
		{PID: 71, Name: "dcgm", GPUInstance: -1, ComputeInstance: -1},
	} {
		must(t, n.Clients().Add(0, c))
	}
	got, err := d.Memory().Processes()
	if err != nil || len(got) != 2 || got[0].PID != 71 || got[1].PID != 90 {
		t.Errorf("Processes = %v, %v", got, err)
	}
	m, err := d.Memory().MemoryV2()
	want := Memory{Total: 81559 << 20, Reserved: 558 << 20, Used: 1 << 30, Free: 81559<<20 - 558<<20 - 1<<30}
	if diff := cmp.Diff(want, m); diff != "" || err != nil {
		t.Errorf("memory, %v (-want +got):\n%s", err, diff)
	}
	if busy, _, err := d.Telemetry().Utilization(); busy == 0 || err != nil {
		t.Errorf("Utilization with clients = %d, %v", busy, err)
	}
	if err := n.Clients().Add(0, Client{PID: 5, GPUInstance: 3}); err == nil {
		t.Error("a client of a partition that is not there was taken")
	}
	for _, pid := range []int{71, 90} {
		if err := n.Clients().Remove(0, pid); err != nil {
			t.Error(err)
		}
	}
	if err := n.Clients().Remove(0, 71); err == nil {
		t.Error("a client was removed twice")
	}
}
