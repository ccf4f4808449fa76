// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// migDevice makes the first GPU of a model and puts it in MIG mode, through a reset where it takes one.
func migDevice(t *testing.T, model string) (*Node, *Device) {
	t.Helper()
	n := testNode(t, model)
	d := n.Device(0)
	intoMIG(t, d)
	if d.board.MIG.ModeNeedsReset {
		must(t, n.Hardware().Reset(0))
	}
	if on, _, err := d.MIG().MIGMode(); !on || err != nil {
		t.Fatalf("MIG mode of %s = %v, %v", model, on, err)
	}
	return n, d
}

// boardDevice makes a GPU of any board, in MIG mode.
func boardDevice(t *testing.T, b *Board) *Device {
	t.Helper()
	s := &spec{Schema: specSchema, Name: b.Name, DriverVersion: "580.95.05", CUDAVersion: 13000, Boards: []Board{*b},
		GPUs: []gpuSpec{{pciEntry: pciEntry{Path: "pci0000:00/0000:00:01.0"}, UUID: "GPU-" + uuidOf(b.Name)}}}
	must(t, s.validate())
	n := newNode("", s, newOptions(nil))
	n.state = newCell(&nodeState{}, (*nodeState).clone)
	n.gpus = append(n.gpus, newCell(&gpuState{MIG: true, MIGPending: true}, (*gpuState).clone))
	must(t, n.Init())
	return n.Device(0)
}

func TestMIGMode_Hopper(t *testing.T) {
	n := testNode(t, "hgx-h100")
	d := n.Device(0)
	must(t, n.Clients().Add(0, Client{PID: 71, Name: "dcgm", GPUInstance: -1}))
	if activation, err := d.MIG().SetMIGMode(true); !errors.Is(activation, gpu.ErrInUse) || err != nil {
		t.Errorf("SetMIGMode of a GPU in use = %v, %v", activation, err)
	}
	if on, pending, err := d.MIG().MIGMode(); on || pending || err != nil {
		t.Errorf("mode after a refusal = %v, %v, %v", on, pending, err)
	}
	must(t, n.Clients().Remove(0, 71))
	if activation, err := d.MIG().SetMIGMode(true); activation != nil || err != nil {
		t.Errorf("SetMIGMode = %v, %v", activation, err)
	}
	if _, err := d.MIG().CreateGPUInstance(19); err != nil {
		t.Fatal(err)
	}
	if activation, err := d.MIG().SetMIGMode(false); !errors.Is(activation, gpu.ErrInUse) || err != nil {
		t.Errorf("SetMIGMode(false) with instances = %v, %v", activation, err)
	}
	must(t, n.Driver().Reboot())
	if on, _, err := d.MIG().MIGMode(); on || err != nil {
		t.Errorf("mode after a reboot = %v, %v", on, err)
	}
}

func TestMIGMode_Ampere(t *testing.T) {
	n := testNode(t, "dgx-a100")
	d := n.Device(0)
	must(t, n.Clients().Add(0, Client{PID: 71, Name: "dcgm", GPUInstance: -1}))
	if activation, err := d.MIG().SetMIGMode(true); !errors.Is(activation, gpu.ErrInUse) || err != nil {
		t.Errorf("SetMIGMode of a GPU in use = %v, %v", activation, err)
	}
	if on, pending, err := d.MIG().MIGMode(); on || !pending || err != nil {
		t.Errorf("mode before the reset = %v, %v, %v", on, pending, err)
	}
	if _, err := d.MIG().CreateGPUInstance(19); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("CreateGPUInstance before the reset = %v", err)
	}
	must(t, n.Shutdown())
	if err := n.Hardware().Reset(0); !errors.Is(err, gpu.ErrInUse) {
		t.Errorf("Reset of a GPU in use = %v", err)
	}
	must(t, n.Clients().Remove(0, 71))
	must(t, n.Hardware().Reset(0))
	must(t, n.Init())
	if _, err := d.MIG().CreateGPUInstance(19); err != nil {
		t.Fatal(err)
	}
	must(t, n.Driver().Reboot())
	on, pending, err := d.MIG().MIGMode()
	if !on || !pending || err != nil {
		t.Errorf("mode after a reboot = %v, %v, %v", on, pending, err)
	}
	if left, err := d.MIG().GPUInstances(19); len(left) > 0 || err != nil {
		t.Errorf("instances after a reboot = %v, %v", left, err)
	}
}

func TestMIGMode_Unsupported(t *testing.T) {
	for _, model := range []string{"l40s", "t4"} {
		d := testNode(t, model).Device(0)
		_, _, modeErr := d.MIG().MIGMode()
		_, setErr := d.MIG().SetMIGMode(true)
		_, infoErr := d.MIG().GPUInstanceProfileInfo(0)
		_, placeErr := d.MIG().GPUInstancePossiblePlacements(19)
		for _, err := range []error{modeErr, setErr, infoErr, placeErr} {
			if !errors.Is(err, gpu.ErrNotSupported) {
				t.Errorf("MIG on %s = %v", model, err)
			}
		}
		if most, err := d.MIG().MaxMIGDevices(); most != 0 || err != nil {
			t.Errorf("MaxMIGDevices on %s = %d, %v", model, most, err)
		}
	}
}

// Profiles and placements are reported in MIG mode and outside; the versioned call wants MIG mode, as nvml.h has it.
func TestProfiles_MIGDisabled(t *testing.T) {
	d := testNode(t, "hgx-h100").Device(0)
	p, err := d.MIG().GPUInstanceProfileInfo(9)
	want := gpu.Profile{ID: 15, Enum: 9, MaxInstances: 4, ComputeSlices: 1, Memory: 20096 << 20, Multiprocessors: 26,
		CopyEngines: 1, Decoders: 1, JPEGEngines: 1}
	if diff := cmp.Diff(want, p); diff != "" || err != nil {
		t.Errorf("profile of enum 9, %v (-want +got):\n%s", err, diff)
	}
	placements, err := d.MIG().GPUInstancePossiblePlacements(p.ID)
	if diff := cmp.Diff([]gpu.Placement{{Start: 0, Size: 2}, {Start: 2, Size: 2}, {Start: 4, Size: 2}, {Start: 6, Size: 2}}, placements); diff != "" || err != nil {
		t.Errorf("placements, %v (-want +got):\n%s", err, diff)
	}
	if _, err := d.MIG().GPUInstanceProfileInfo(5); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("profile of an enum the board has not = %v", err)
	}
	if _, err := d.MIG().GPUInstanceProfileInfo(18); !errors.Is(err, gpu.ErrInvalidArgument) {
		t.Errorf("profile past the last enum = %v", err)
	}
	if _, err := d.MIG().ProfileByEnumV(0); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("versioned profile outside MIG mode = %v", err)
	}
	if found, err := d.MIG().GPUInstances(19); len(found) > 0 || err != nil {
		t.Errorf("instances outside MIG mode = %v, %v", found, err)
	}
	if left, err := d.MIG().GPUInstanceRemainingCapacity(19); left != 7 || err != nil {
		t.Errorf("room for 1g outside MIG mode = %d, %v", left, err)
	}
}

// Every placement of every profile of every board can be made alone, gets the ID of its placement, and is refused
// where something overlaps it.
func TestPlacements_EveryBoard(t *testing.T) {
	for _, b := range allBoards(t) {
		if b.MIG == nil {
			continue
		}
		d := boardDevice(t, &b)
		for _, p := range b.MIG.Profiles {
			for _, at := range p.Placements() {
				t.Run(fmt.Sprintf("%s/%s/%d:%d", b.Name, p.Name, at.Start, at.Size), func(t *testing.T) {
					checkPlacement(t, d, &p, at)
				})
			}
		}
	}
}

func checkPlacement(t *testing.T, d *Device, p *Profile, at gpu.Placement) {
	t.Helper()
	gi, err := d.MIG().CreateGPUInstanceWithPlacement(p.ID, at)
	must(t, err)
	info, err := gi.Info()
	want := GPUInstanceInfo{ID: instanceID(d.board.MIG.Slices, at.Start, at.Size), ProfileID: p.ID, Placement: at}
	if diff := cmp.Diff(want, info); diff != "" || err != nil {
		t.Errorf("info, %v (-want +got):\n%s", err, diff)
	}
	for _, q := range d.board.MIG.Profiles {
		for _, other := range q.Placements() {
			if !other.Overlaps(at) {
				continue
			}
			if _, err := d.MIG().CreateGPUInstanceWithPlacement(q.ID, other); !errors.Is(err, gpu.ErrInsufficientResources) {
				t.Errorf("%s at %d:%d alongside it = %v", q.Name, other.Start, other.Size, err)
			}
		}
	}
	whole := *p.Filling()
	ci, err := gi.CreateComputeInstance(whole.ID)
	must(t, err)
	if err := gi.Destroy(); !errors.Is(err, gpu.ErrInUse) {
		t.Errorf("Destroy with a compute instance = %v", err)
	}
	attributes, err := MIGDeviceOf(ci).Attributes()
	wantAttributes := Attributes{Instance: p.Info(), Multiprocessors: p.Multiprocessors, Slices: p.ComputeSlices}
	if diff := cmp.Diff(wantAttributes, attributes); diff != "" || err != nil {
		t.Errorf("attributes, %v (-want +got):\n%s", err, diff)
	}
	if err := errors.Join(ci.Destroy(), gi.Destroy()); err != nil {
		t.Error(err)
	}
	if _, err := gi.Info(); !errors.Is(err, gpu.ErrInvalidArgument) {
		t.Errorf("Info of what is gone = %v", err)
	}
}

// A long random life of every board: the simulation admits exactly what a plain account of units and engines admits.
func TestPartitions_RandomSequence(t *testing.T) {
	for _, b := range allBoards(t) {
		if b.MIG == nil {
			continue
		}
		t.Run(b.Name, func(t *testing.T) {
			d := boardDevice(t, &b)
			random := rand.New(rand.NewPCG(1, 2))
			var live []account
			for range 2000 {
				if len(live) > 0 && random.IntN(3) == 0 {
					i := random.IntN(len(live))
					must(t, live[i].gi.Destroy())
					live = slices.Delete(live, i, i+1)
					continue
				}
				p := &b.MIG.Profiles[random.IntN(len(b.MIG.Profiles))]
				at := gpu.Placement{Start: p.Starts[random.IntN(len(p.Starts))], Size: p.Size}
				fits := fitsAccount(&b, live, p, at)
				gi, err := d.MIG().CreateGPUInstanceWithPlacement(p.ID, at)
				if fits != (err == nil) || err != nil && !errors.Is(err, gpu.ErrInsufficientResources) {
					t.Fatalf("%s at %d:%d alongside %v: fits %v, got %v", p.Name, at.Start, at.Size, live, fits, err)
				}
				if err == nil {
					live = append(live, account{gi, p, at})
				}
			}
		})
	}
}

// account is an instance in the plain account.
type account struct {
	gi *GPUInstance
	p  *Profile
	at gpu.Placement
}

// fitsAccount is the plain account: each unit once, each engine of the board once, each profile so many times.
func fitsAccount(b *Board, live []account, p *Profile, at gpu.Placement) bool {
	units := map[int]bool{}
	same := 1
	used := p.engines()
	for _, l := range live {
		for u := l.at.Start; u < l.at.Start+l.at.Size; u++ {
			units[u] = true
		}
		if l.p == p {
			same++
		}
		for e, n := range l.p.engines() {
			used[e] += n
		}
	}
	for u := at.Start; u < at.Start+at.Size; u++ {
		if units[u] {
			return false
		}
	}
	for e, n := range b.MIG.engines() {
		if used[e] > n {
			return false
		}
	}
	return same <= p.MaxInstances
}
