// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
)

// Driver is the kernel driver of a node, with the state that it loses when unloaded.
type Driver struct{ *core }

// Reboot simulates a reboot of the machine: a new boot ID, the driver loaded, lost GPUs restored, partitions and clients gone.
// Boards before Hopper keep the MIG mode, and pending modes become active. Faults stay.
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

// restart clears the state that a GPU loses with its power or driver.
func (d *access) restart(st *gpuState) error {
	st.reset(d.board, d.node.microseconds())
	st.Work = work{}
	st.ComputeMode, st.TimeSlice = 0, 0
	if d.board.MIG == nil || !d.board.MIG.ModeNeedsReset {
		st.MIG, st.MIGPending = false, false
	}
	return nil
}

// Unload unloads the kernel driver: every call fails with DRIVER_NOT_LOADED, /proc/driver/nvidia is gone, and GPU state that
// depends on the running driver is lost. Like rmmod, it fails while clients use a GPU or any session is open, including one of this
// Node.
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

// ForceUnload is Unload even while the driver is in use.
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

// Load loads the kernel driver again.
func (d Driver) Load() error {
	return d.state.update(func(s *nodeState) error {
		s.Unloaded = false
		if err := errors.Join(d.files.loadModule(), d.files.writeModules(loadedModules)); err != nil {
			return err
		}
		return d.files.moveProc(stashedProc, "proc/driver/nvidia")
	})
}
