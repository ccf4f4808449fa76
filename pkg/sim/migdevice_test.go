// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

func TestComputeInstances(t *testing.T) {
	n, d := migDevice(t, "hgx-h100")
	gi, err := d.MIG().CreateGPUInstanceWithPlacement(9, gpu.Placement{Start: 4, Size: 4})
	must(t, err)
	info, err := gi.ComputeInstanceProfileInfo(0, 0)
	if err != nil || info.Slices != 1 || info.MaxInstances != 3 || info.Multiprocessors != 20 || info.Name != "1c.3g.40gb" {
		t.Errorf("profile info = %+v, %v", info, err)
	}
	two, err := gi.CreateComputeInstance(1)
	must(t, err)
	if left, err := gi.ComputeInstanceRemainingCapacity(0); left != 1 || err != nil {
		t.Errorf("room for 1c alongside 2c = %d, %v", left, err)
	}
	one, err := gi.CreateComputeInstance(0)
	must(t, err)
	oneInfo, err := one.Info()
	if err != nil || oneInfo.ID != 1 || oneInfo.Placement != (gpu.Placement{Start: 2, Size: 1}) {
		t.Errorf("info of 1c = %+v, %v", oneInfo, err)
	}
	if _, err := gi.CreateComputeInstance(0); !errors.Is(err, gpu.ErrInsufficientResources) {
		t.Errorf("1c too many = %v", err)
	}
	if _, err := gi.CreateComputeInstance(4); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("7c in 3g = %v", err)
	}
	must(t, n.Clients().Add(0, Client{PID: 9, Name: "python", GPUInstance: gi.ID(), ComputeInstance: one.ID()}))
	if err := one.Destroy(); !errors.Is(err, gpu.ErrInUse) {
		t.Errorf("Destroy of a compute instance = %v", err)
	}
	name, err := MIGDeviceOf(two).Name()
	if err != nil || name != "NVIDIA H100 80GB HBM3 MIG 2c.3g.40gb" {
		t.Errorf("name = %q, %v", name, err)
	}
	processes, err := MIGDeviceOf(one).Processes()
	if err != nil || len(processes) != 1 || processes[0].PID != 9 {
		t.Errorf("processes = %v, %v", processes, err)
	}
}

func TestMIGDevices(t *testing.T) {
	n, d := migDevice(t, "hgx-h100")
	var uuids []string
	for _, start := range []int{0, 4} {
		gi, err := d.MIG().CreateGPUInstanceWithPlacement(9, gpu.Placement{Start: start, Size: 4})
		must(t, err)
		ci, err := gi.CreateComputeInstance(2)
		must(t, err)
		uuid, err := MIGDeviceOf(ci).UUID()
		must(t, err)
		uuids = append(uuids, uuid)
	}
	for i, uuid := range uuids {
		m, err := d.MIG().MIGDeviceByIndex(i)
		must(t, err)
		if got, err := m.UUID(); got != uuid || err != nil {
			t.Errorf("partition %d = %s, %v, want %s", i, got, err, uuid)
		}
		_, found, err := n.DeviceByUUID(uuid)
		if err != nil || found == nil {
			t.Fatalf("DeviceByUUID(%s) = %v, %v", uuid, found, err)
		}
		if parent, err := found.Parent(); parent != d || err != nil {
			t.Errorf("Parent = %v, %v", parent, err)
		}
		if mem, err := found.MemoryV1(); mem.Total != 40448<<20 || err != nil {
			t.Errorf("memory = %+v, %v", mem, err)
		}
	}
	if _, err := d.MIG().MIGDeviceByIndex(2); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("partition past the last = %v", err)
	}
	if most, err := d.MIG().MaxMIGDevices(); most != 7 || err != nil {
		t.Errorf("MaxMIGDevices = %d, %v", most, err)
	}
}

// A handle does not reach an instance that was made later with the same ID.
func TestStaleHandles(t *testing.T) {
	_, d := migDevice(t, "hgx-h100")
	at := gpu.Placement{Start: 6, Size: 1}
	old, err := d.MIG().CreateGPUInstanceWithPlacement(19, at)
	must(t, err)
	must(t, old.Destroy())
	next, err := d.MIG().CreateGPUInstanceWithPlacement(19, at)
	if err != nil || next.ID() != old.ID() {
		t.Fatalf("made again: ID %d after %d, %v", next.ID(), old.ID(), err)
	}
	if err := old.Destroy(); !errors.Is(err, gpu.ErrInvalidArgument) {
		t.Errorf("Destroy by the old handle = %v", err)
	}
	if found, err := d.MIG().GPUInstanceByID(next.ID()); err != nil || found.Serial() != next.Serial() {
		t.Errorf("GPUInstanceByID = %+v, %v", found, err)
	}
}

func TestCreateGPUInstance_DriverPlaces(t *testing.T) {
	_, d := migDevice(t, "hgx-h100")
	var got []int
	for {
		gi, err := d.MIG().CreateGPUInstance(14)
		if errors.Is(err, gpu.ErrInsufficientResources) {
			break
		}
		must(t, err)
		info, err := gi.Info()
		must(t, err)
		got = append(got, info.Placement.Start)
	}
	if diff := cmp.Diff([]int{0, 2, 4}, got); diff != "" {
		t.Errorf("starts (-want +got):\n%s", diff)
	}
	if left, err := d.MIG().GPUInstanceRemainingCapacity(19); left != 1 || err != nil {
		t.Errorf("room for 1g = %d, %v", left, err)
	}
	if _, err := d.MIG().CreateGPUInstanceWithPlacement(19, gpu.Placement{Start: 7, Size: 1}); !errors.Is(err, gpu.ErrInvalidArgument) {
		t.Errorf("1g at 7, where none can be = %v", err)
	}
	if _, err := d.MIG().CreateGPUInstanceWithPlacement(9, gpu.Placement{Start: 4, Size: 2}); !errors.Is(err, gpu.ErrInvalidArgument) {
		t.Errorf("3g of size 2 = %v", err)
	}
}
