// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"errors"
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Upper bounds of the IDs of GPU instances of a GPU, and of compute instances of a GPU instance.
const (
	maxInstances = 15
	maxCompute   = 8
)

// instanceID is the driver's ID of a GPU instance at a placement, on a board with a number of units: 0 for the whole board, 1 and 2
// for halves, 3 to 6 for quarters, 7 on for eighths.
func instanceID(units, start, size int) int {
	return units/size - 1 + start/size
}

// findInstance returns the GPU instance of an ID, or nil.
func (st *gpuState) findInstance(id int) *gpuInstance {
	i, ok := slices.BinarySearchFunc(st.Instances, id, func(gi gpuInstance, id int) int { return cmp.Compare(gi.ID, id) })
	if !ok {
		return nil
	}
	return &st.Instances[i]
}

// findCompute returns the compute instance of an ID, or nil.
func (gi *gpuInstance) findCompute(id int) *computeInstance {
	i, ok := slices.BinarySearchFunc(gi.Compute, id, func(ci computeInstance, id int) int { return cmp.Compare(ci.ID, id) })
	if !ok {
		return nil
	}
	return &gi.Compute[i]
}

// admit reports why a GPU instance cannot be created at a start, or nil. The constraints of a board: placements must not overlap, a
// profile has a maximum number of instances, and all instances share the engines of the whole board.
func (st *gpuState) admit(b *Board, p *Profile, start int) *Error {
	if !slices.Contains(p.Starts, start) {
		return fail("", CodeInvalidArgument, "profile %s (ID %d) cannot lie at %d:%d", p.Name, p.ID, start, p.Size)
	}
	want := gpu.Placement{Start: start, Size: p.Size}
	same := 0
	used := p.engines()
	for i := range st.Instances {
		gi := &st.Instances[i]
		other := b.profileByID(gi.Profile)
		if have := (gpu.Placement{Start: gi.Start, Size: other.Size}); have.Overlaps(want) {
			return fail("", CodeInsufficientResources, "%s at %d:%d overlaps GPU instance %d (%s at %d:%d)",
				p.Name, start, p.Size, gi.ID, other.Name, have.Start, have.Size)
		}
		if other.ID == p.ID {
			same++
		}
		for e, n := range other.engines() {
			used[e] += n
		}
	}
	if same >= p.MaxInstances {
		return fail("", CodeInsufficientResources, "the board takes %d of %s, and has them", p.MaxInstances, p.Name)
	}
	for e, n := range b.MIG.engines() {
		if used[e] > n {
			return fail("", CodeInsufficientResources, "%s needs more %s engines than are left of %d", p.Name, engineNames[e], n)
		}
	}
	return nil
}

// engineNames are the names of the engines that instances share, in the order of engines.
var engineNames = [...]string{"copy", "decoder", "encoder", "JPEG", "OFA"}

// engines are the numbers of engines of an instance.
func (p *Profile) engines() [len(engineNames)]int {
	return [...]int{p.CopyEngines, p.Decoders, p.Encoders, p.JPEGEngines, p.OFAEngines}
}

// engines are those of the whole board, which the largest profile has.
func (g *Geometry) engines() [len(engineNames)]int {
	var most [len(engineNames)]int
	for i := range g.Profiles {
		for e, n := range g.Profiles[i].engines() {
			most[e] = max(most[e], n)
		}
	}
	return most
}

// admit reports why a compute instance cannot be created at a start, or nil.
func (gi *gpuInstance) admit(p *Profile, c *ComputeProfile, start int) *Error {
	if !slices.Contains(c.Starts, start) {
		return fail("", CodeInvalidArgument, "compute profile %d cannot start at compute slice %d of %s", c.ID, start, p.Name)
	}
	want := gpu.Placement{Start: start, Size: c.Slices}
	for _, ci := range gi.Compute {
		have := gpu.Placement{Start: ci.Start, Size: p.computeByID(ci.Profile).Slices}
		if have.Overlaps(want) {
			return fail("", CodeInsufficientResources, "compute slices %d:%d overlap compute instance %d at %d:%d",
				start, c.Slices, ci.ID, have.Start, have.Size)
		}
	}
	return nil
}

// in sets the call in which the error occurred.
func (e *Error) in(call string) *Error {
	return &Error{Call: call, Code: e.Code, Detail: e.Detail}
}

// MIG is the MIG mode of a GPU and its partitions.
type MIG struct{ *access }

// MIGMode is the mode now and the mode after the next reset (nvmlDeviceGetMigMode); ErrNotSupported on boards that
// offer no MIG.
func (d MIG) MIGMode() (current, pending bool, err error) {
	const call = "nvmlDeviceGetMigMode"
	st, err := d.load(call)
	if err != nil {
		return false, false, err
	}
	if d.board.MIG == nil {
		return false, false, d.noMIG(call)
	}
	return st.MIG, st.MIGPending, nil
}

// noMIG is the error of boards without MIG.
func (d *access) noMIG(call string) error {
	return fail(call, CodeNotSupported, "%s offers no MIG, or nobody has captured its geometry", d.board.Product)
}

// loadMIG is load for calls that need MIG mode.
func (d MIG) loadMIG(call string) (*gpuState, error) {
	st, err := d.load(call)
	if err == nil {
		err = d.needMIG(call, st)
	}
	return st, err
}

// needMIG rejects calls that need MIG mode.
func (d *access) needMIG(call string, st *gpuState) error {
	if d.board.MIG == nil {
		return d.noMIG(call)
	}
	if !st.MIG {
		return fail(call, CodeNotSupported, "GPU %d is not in MIG mode", d.index)
	}
	return nil
}

// SetMIGMode requests a MIG mode (nvmlDeviceSetMigMode). Like NVML it has two results: err reports whether the request was
// accepted, activation whether the mode is active. From Hopper on the mode changes at once, unless something uses the GPU: then
// activation is ErrInUse and nothing has changed; that also applies to guests, as no reset is needed. Before Hopper, the driver
// resets the GPU for it (MIG user guide, "Enable MIG Mode"): if others have the GPU open that fails, activation is ErrInUse and the
// mode is pending. A guest cannot reset its GPU: there activation is ErrResetRequired (nvml.h).
func (d MIG) SetMIGMode(enable bool) (activation, err error) {
	const call = "nvmlDeviceSetMigMode"
	if err := d.node.enter(call, d.index); err != nil {
		return nil, err
	}
	if d.board.MIG == nil {
		return nil, d.noMIG(call)
	}
	if st, err := d.node.gpus[d.index].load(); err == nil && st.Virtualization == VirtualizationVGPU {
		return nil, fail(call, CodeNotSupported, "GPU %d is a vGPU: its host has the MIG mode", d.index)
	}
	if d.board.MIG.ModeNeedsReset {
		return d.setModeByReset(call, enable)
	}
	err = d.change(call, func(st *gpuState) error {
		activation = nil
		if st.MIG == enable {
			st.MIGPending = enable
			return nil
		}
		if busy := d.busyForMode(st, enable); busy != "" {
			activation = fail(call, CodeInUse, "GPU %d is in use by %s", d.index, busy)
			return nil
		}
		if d.passedThrough(st) && d.node.has(QuirkVMNeedsReset) {
			st.MIGPending = enable
			activation = fail(call, CodeResetRequired, "the mode of GPU %d changes when the virtual machine reboots", d.index)
			return nil
		}
		st.MIG, st.MIGPending, st.Instances = enable, enable, nil
		if d.node.has(QuirkMinorChanges) {
			st.MinorShift += len(d.node.devices)
		}
		if !enable && d.node.has(QuirkFabricAfterMIG) {
			st.FabricState, st.FabricLooks = FabricInProgress, fabricLooks
		}
		st.addMIGEvent()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return activation, nil
}

// fabricLooks is the number of queries for which a GPU that leaves MIG mode is still registering.
const fabricLooks = 3

// setModeByReset changes the mode of a board that needs a reset for it, immediately if nothing prevents it.
func (d MIG) setModeByReset(call string, enable bool) (activation, err error) {
	release, aloneErr := d.node.open.alone(d.index)
	switch {
	case aloneErr == nil:
		defer release()
	case !errors.Is(aloneErr, errOpen):
		return nil, fail(call, CodeUnknown, "%v", aloneErr)
	}
	st, err := d.node.gpus[d.index].load()
	if err != nil {
		return nil, fail(call, CodeUnknown, "%v", err)
	}
	var resetErr error
	if st.MIG != enable && noReset(d, call, st, enable, aloneErr) == nil {
		resetErr = d.node.faults.Apply(CallReset, d.index) // the driver resets the GPU now, which may take long
	}
	err = d.change(call, func(st *gpuState) error {
		activation = nil
		st.MIGPending = enable
		why := noReset(d, call, st, enable, aloneErr)
		switch {
		case st.MIG == enable:
		case why != nil:
			activation = why
		case resetErr != nil:
			activation = fail(call, CodeResetRequired, "the reset of GPU %d failed: %v", d.index, resetErr)
		default:
			st.reset(d.board, d.node.microseconds())
			st.addMIGEvent()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return activation, nil
}

// noReset is why the driver cannot reset a GPU for its mode; nil if it can.
func noReset(d MIG, call string, st *gpuState, enable bool, aloneErr error) error {
	busy := d.busyForMode(st, enable)
	switch {
	case aloneErr != nil:
		return fail(call, CodeInUse, "GPU %d is open in %s", d.index, d.node.open.who(d.index))
	case busy != "":
		return fail(call, CodeInUse, "GPU %d is in use by %s", d.index, busy)
	case d.node.has(QuirkDRMHolds):
		return fail(call, CodeInUse, "GPU %d is in use by another client", d.index)
	case st.Persistence:
		return fail(call, CodeInUse, "GPU %d is kept initialised by its persistence mode", d.index)
	case d.passedThrough(st):
		return fail(call, CodeResetRequired, "the mode of GPU %d changes with the next reset", d.index)
	case len(d.node.Hardware().ResetWith(d.index)) > 0:
		return fail(call, CodeResetRequired, "GPU %d is reset with others or not at all", d.index)
	default:
		return nil
	}
}

// busy describes the obstacle to changing the mode of a GPU; empty for none.
func (st *gpuState) busy() string {
	if who := st.users(func(Client) bool { return true }); who != "" {
		return who
	}
	if len(st.Instances) > 0 {
		return "its GPU instances"
	}
	return ""
}

// addMIGEvent notifies waiting event sets that the partitions have changed. One such event replaces all before it, so that many
// changes do not crowd out other events.
func (st *gpuState) addMIGEvent() {
	st.Events = slices.DeleteFunc(st.Events, func(e event) bool { return e.Type == EventMIGConfigChange })
	st.addEvent(event{Type: EventMIGConfigChange, GPUInstance: noInstance, ComputeInstance: noInstance})
}

// GPUInstanceProfileInfo describes the profile of an NVML enum (nvmlDeviceGetGpuInstanceProfileInfo), in MIG mode or
// not; ErrNotSupported if the board has none of that enum, ErrInvalidArgument past the last enum.
func (d MIG) GPUInstanceProfileInfo(enum int) (gpu.Profile, error) {
	p, err := d.ProfileByEnum(enum)
	if err != nil {
		return gpu.Profile{}, err
	}
	info := p.Info()
	if d.node.has(QuirkWrongCounts) {
		info.MaxInstances = 1
	}
	return info, nil
}

// beginListing starts a call that lists possible partitions, in MIG mode or not; with a quirk it fails outside MIG mode.
func beginListing(d MIG, call string) error {
	if d.board.MIG != nil && d.node.has(QuirkListsInMIGMode) {
		_, err := d.loadMIG(call)
		return err
	}
	return d.node.enter(call, d.index)
}

// profileEnums is NVML_GPU_INSTANCE_PROFILE_COUNT, fewerProfileEnums that of a driver with QuirkFewerProfiles.
const profileEnums, fewerProfileEnums = 18, 13

// knowsProfile reports whether the node's driver knows a profile enum.
func (c *core) knowsProfile(enum int) bool {
	return enum >= 0 && enum < profileEnums && (enum < fewerProfileEnums || !c.has(QuirkFewerProfiles))
}

// ProfileByEnum is GPUInstanceProfileInfo with all data of the simulation.
func (d MIG) ProfileByEnum(enum int) (*Profile, error) {
	const call = "nvmlDeviceGetGpuInstanceProfileInfo"
	if err := beginListing(d, call); err != nil {
		return nil, err
	}
	return d.profileByEnum(call, enum)
}

// ProfileByEnumV is nvmlDeviceGetGpuInstanceProfileInfoV, which according to nvml.h works only in MIG mode.
func (d MIG) ProfileByEnumV(enum int) (*Profile, error) {
	const call = "nvmlDeviceGetGpuInstanceProfileInfoV"
	if _, err := d.loadMIG(call); err != nil {
		return nil, err
	}
	return d.profileByEnum(call, enum)
}

// ProfileByIDV is nvmlDeviceGetGpuInstanceProfileInfoByIdV, for a profile ID, in MIG mode only.
func (d MIG) ProfileByIDV(id int) (*Profile, error) {
	const call = "nvmlDeviceGetGpuInstanceProfileInfoByIdV"
	if _, err := d.loadMIG(call); err != nil {
		return nil, err
	}
	return d.profileByID(call, id)
}

func (d MIG) profileByEnum(call string, enum int) (*Profile, error) {
	if d.board.MIG == nil {
		return nil, d.noMIG(call)
	}
	if !d.node.knowsProfile(enum) {
		return nil, fail(call, CodeInvalidArgument, "profile enum %d", enum)
	}
	p := d.board.profileByEnum(enum)
	if p == nil {
		return nil, fail(call, CodeNotSupported, "%s has no profile of enum %d", d.board.Product, enum)
	}
	return p, nil
}

// profileByID finds the profile of a profile ID.
func (d MIG) profileByID(call string, id int) (*Profile, error) {
	p := d.board.profileByID(id)
	if p == nil || !d.node.knowsProfile(p.Enum) {
		return nil, fail(call, CodeNotSupported, "%s has no profile of ID %d (that is not the enum)", d.board.Product, id)
	}
	return p, nil
}

// GPUInstancePossiblePlacements lists the possible placements of a profile ID, occupied or not, in MIG mode or not
// (nvmlDeviceGetGpuInstancePossiblePlacements_v2).
func (d MIG) GPUInstancePossiblePlacements(profileID int) ([]gpu.Placement, error) {
	const call = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"
	if err := beginListing(d, call); err != nil {
		return nil, err
	}
	if d.board.MIG == nil {
		return nil, d.noMIG(call)
	}
	p, err := d.profileByID(call, profileID)
	if err != nil {
		return nil, err
	}
	return p.Placements(), nil
}
