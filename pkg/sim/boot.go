// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
)

// Driver is the kernel driver of a node, and what ends with it.
type Driver struct{ *core }

// Reboot does to the node what a reboot of the machine does: a new boot id, the driver loaded, lost GPUs back,
// partitions and clients gone. The MIG mode is kept where boards keep it (before Hopper), pending modes become active.
// Faults stay.
func (d Driver) Reboot() error {
	if err := d.Load(); err != nil {
		return fmt.Errorf("reboot: %w", err)
	}
	for i := range d.gpus {
		if err := d.gpus[i].update(d.devices[i].restart); err != nil {
			return fmt.Errorf("reboot: %w", err)
		}
	}
	return d.state.update(func(s *nodeState) error {
		s.Boots++
		s.BootID = bootID(d.spec, s.Boots)
		s.Lost = nil
		if d.files.root == "" {
			return nil
		}
		return writeBootID(d.files.root, s.BootID)
	})
}

// restart is what a GPU forgets when it loses power or its driver.
func (d *access) restart(st *gpuState) error {
	st.reset()
	st.ComputeMode, st.TimeSlice = 0, 0
	if d.board.MIG == nil || !d.board.MIG.ModeNeedsReset {
		st.MIG, st.MIGPending = false, false
	}
	return nil
}

// Unload takes the kernel driver away: every call fails with DRIVER_NOT_LOADED, /proc/driver/nvidia is gone, and
// what a GPU keeps only while its driver runs is lost. It is refused while clients use a GPU or any session is open, one
// of this Node's too, as rmmod refuses a module in use.
func (d Driver) Unload() error {
	if d.open.isOpen(driverSlot) {
		return fmt.Errorf("unload driver: module nvidia is in use by this process")
	}
	release, err := d.open.alone(driverSlot)
	if errors.Is(err, errOpen) {
		return fmt.Errorf("unload driver: module nvidia is in use by %s", d.open.who(driverSlot))
	}
	if err != nil {
		return fmt.Errorf("unload driver: %w", err)
	}
	defer release()
	for i := range d.gpus {
		st, err := d.gpus[i].load()
		if err != nil {
			return fmt.Errorf("unload driver: %w", err)
		}
		if who := st.attached(); who != "" {
			return fmt.Errorf("unload driver: module nvidia is in use by %s", who)
		}
	}
	return d.ForceUnload()
}

// ForceUnload is Unload behind the back of those who have it open.
func (d Driver) ForceUnload() error {
	for i := range d.gpus {
		if err := d.gpus[i].update(d.devices[i].restart); err != nil {
			return fmt.Errorf("unload driver: %w", err)
		}
	}
	return d.state.update(func(s *nodeState) error {
		s.Unloaded = true
		if err := errors.Join(d.files.unloadModule(s), d.files.writeModules(otherModules)); err != nil {
			return err
		}
		return d.files.moveProc("proc/driver/nvidia", stashedProc)
	})
}

// Load brings the kernel driver back.
func (d Driver) Load() error {
	return d.state.update(func(s *nodeState) error {
		s.Unloaded = false
		if err := errors.Join(d.files.loadModule(), d.files.writeModules(loadedModules)); err != nil {
			return err
		}
		return d.files.moveProc(stashedProc, "proc/driver/nvidia")
	})
}
