// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"slices"
)

// reset clears the state that a GPU loses on a reset. Events stay, as they are a log. Compute mode and time slice also stay: the
// driver keeps them by UUID until it is unloaded (open-gpu-kernel-modules 595.45.04, gpu_registry.c, gpu_db.c).
func (st *gpuState) reset(b *Board, now int64) {
	st.account(b, now)
	st.MIG = st.MIGPending
	st.Instances, st.Clients, st.Limits = nil, nil, nil
	st.Recovery = 0
	st.Persistence = false
}

// Reset simulates "nvidia-smi --gpu-reset": partitions are lost, the pending MIG mode becomes the current one, and nothing else
// about the node changes. It fails while clients use the GPU or any session has it open, including one of this Node; in persistence
// mode, which counts as a client of its own (NVIDIA/NVSentinel#1690); and on a lost GPU, which only a reboot brings back. together
// are the GPUs that the same command resets.
func (h Hardware) Reset(index int, together ...int) error {
	const call = "reset"
	if err := h.checkReset(index); err != nil {
		return err
	}
	if missing := h.ResetWith(index, together...); len(missing) > 0 {
		return fail(call, CodeNotSupported, "GPU %d can be reset only together with GPUs %v", index, missing)
	}
	if h.has(QuirkDRMHolds) {
		return fail(call, CodeInUse, "GPU %d is in use by another client", index)
	}
	if h.open.isOpen(index) {
		return fail(call, CodeInUse, "GPU %d is open in this process", index)
	}
	release, err := h.open.alone(index)
	if errors.Is(err, errOpen) {
		return fail(call, CodeInUse, "GPU %d is open in %s", index, h.open.who(index))
	}
	if err != nil {
		return fmt.Errorf("reset GPU %d: %w", index, err)
	}
	defer release()
	inUse := func(st *gpuState) error {
		if who := st.attached(); who != "" {
			return fail(call, CodeInUse, "GPU %d is in use by %s", index, who)
		}
		return nil
	}
	st, err := h.gpus[index].load()
	if err != nil {
		return fmt.Errorf("reset GPU %d: %w", index, err)
	}
	if err := inUse(st); err != nil {
		return err
	}
	if err := h.faults.Apply(CallReset, index); err != nil {
		return err
	}
	return h.gpus[index].update(func(st *gpuState) error {
		if err := inUse(st); err != nil {
			return err
		}
		st.reset(h.devices[index].board, h.microseconds())
		return nil
	})
}

// ResetWith lists the GPUs missing from a reset command: the NVLink peers of a GPU, if the driver cannot reset it alone.
func (h Hardware) ResetWith(index int, together ...int) (missing []int) {
	if !h.has(QuirkResetTogether) || !h.devices[index].linked() {
		return nil
	}
	for i, d := range h.devices {
		switched := h.spec.Links.Kind == "switch" || h.spec.Links.Kind == "fabric"
		if i != index && !slices.Contains(together, i) && (switched || slices.Contains(d.peers(), index)) {
			missing = append(missing, i)
		}
	}
	return missing
}

// checkReset rejects a reset of a missing GPU.
func (h Hardware) checkReset(index int) error {
	if err := h.checkIndex(index); err != nil {
		return err
	}
	node, err := h.state.load()
	if err != nil {
		return fmt.Errorf("reset GPU %d: %w", index, err)
	}
	if slices.Contains(node.Lost, index) {
		return fail("reset", CodeGPUIsLost, "GPU %d fell off the bus", index)
	}
	return nil
}

// attached describes users of the GPU other than sessions; empty for none.
func (st *gpuState) attached() string {
	if who := st.users(func(Client) bool { return true }); who != "" {
		return who
	}
	if st.Persistence {
		return "its persistence mode"
	}
	return ""
}

// ForceReset resets a GPU even while it is open or in use. Within a boot the reset is undetectable: instances recreated in the same
// places have the same IDs and UUIDs, as the driver derives the UUID from the board and the instance's ID (open-gpu-kernel-modules
// 595.45.04, nvGenerateSmcUuid in gpu_uuid.c).
func (h Hardware) ForceReset(index int) error {
	if err := h.checkReset(index); err != nil {
		return err
	}
	return h.gpus[index].update(func(st *gpuState) error {
		st.reset(h.devices[index].board, h.microseconds())
		return nil
	})
}

// ForceRemake is ForceReset, after which another tool recreates the same instances in the same places.
func (h Hardware) ForceRemake(index int) error {
	was, err := h.layoutOf(index)
	if err != nil {
		return err
	}
	if err := h.ForceReset(index); err != nil {
		return err
	}
	return h.remake(index, was)
}

// ForceReload reloads the kernel driver even while it is open. With remake, another tool then recreates the previous instances in
// the same places.
func (d Driver) ForceReload(remake bool) error {
	var was []*gpuState
	for i := range d.gpus {
		st, err := d.layoutOf(i)
		if err != nil {
			return err
		}
		was = append(was, st)
	}
	if err := d.ForceUnload(); err != nil {
		return err
	}
	if err := d.Load(); err != nil {
		return err
	}
	for i, st := range was {
		if !remake || len(st.Instances) == 0 {
			continue
		}
		if err := d.remake(i, st); err != nil {
			return err
		}
	}
	return nil
}

// layoutOf is the current state of a GPU.
func (c *core) layoutOf(index int) (*gpuState, error) {
	if err := c.checkIndex(index); err != nil {
		return nil, err
	}
	st, err := c.gpus[index].load()
	if err != nil {
		return nil, fmt.Errorf("read GPU %d: %w", index, err)
	}
	return st, nil
}

// remake recreates the instances of an earlier state as new ones: handles of the old ones stay stale.
func (c *core) remake(index int, was *gpuState) error {
	return c.gpus[index].update(func(st *gpuState) error {
		if len(st.Instances) > 0 {
			return fmt.Errorf("remake partitions of GPU %d: it has some", index)
		}
		st.MIG, st.MIGPending = was.MIG, was.MIGPending
		st.Instances = was.clone().Instances
		for i := range st.Instances {
			gi := &st.Instances[i]
			st.LastSerial++
			gi.Serial = st.LastSerial
			for j := range gi.Compute {
				st.LastSerial++
				gi.Compute[j].Serial, gi.Compute[j].ComputeMode = st.LastSerial, ModeDefault
			}
		}
		st.addMIGEvent()
		return nil
	})
}
