// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Reboot does to the node what a reboot of the machine does: a new boot id, the driver loaded, lost GPUs back,
// partitions and clients gone. The MIG mode is kept where boards keep it (before Hopper), pending modes become active.
// Faults stay.
func (n *Node) Reboot() error {
	if err := n.LoadDriver(); err != nil {
		return fmt.Errorf("reboot: %w", err)
	}
	for i := range n.gpus {
		if err := n.gpus[i].update(n.devices[i].restart); err != nil {
			return fmt.Errorf("reboot: %w", err)
		}
	}
	return n.state.update(func(s *nodeState) error {
		s.Boots++
		s.BootID = bootID(n.spec, s.Boots)
		s.Lost = nil
		if n.root == "" {
			return nil
		}
		return writeBootID(n.root, s.BootID)
	})
}

// restart is what a GPU forgets when it loses power or its driver.
func (d *Device) restart(st *gpuState) error {
	st.reset()
	if d.board.MIG == nil || !d.board.MIG.ModeNeedsReset {
		st.MIG, st.MIGPending = false, false
	}
	return nil
}

// UnloadDriver takes the kernel driver away: every call fails with DRIVER_NOT_LOADED, /proc/driver/nvidia is gone, and
// what a GPU keeps only while its driver runs is lost. It is refused while clients use a GPU or any session is open, one
// of this Node's too, as rmmod refuses a module in use.
func (n *Node) UnloadDriver() error {
	if n.isOpen(driverSlot) {
		return fmt.Errorf("unload driver: module nvidia is in use by this process")
	}
	release, err := n.alone(driverSlot)
	if errors.Is(err, errOpen) {
		return fmt.Errorf("unload driver: module nvidia is in use by %s", n.whoHasOpen(driverSlot))
	}
	if err != nil {
		return fmt.Errorf("unload driver: %w", err)
	}
	defer release()
	for i := range n.gpus {
		st, err := n.gpus[i].load()
		if err != nil {
			return fmt.Errorf("unload driver: %w", err)
		}
		if who := st.attached(); who != "" {
			return fmt.Errorf("unload driver: module nvidia is in use by %s", who)
		}
	}
	return n.ForceUnloadDriver()
}

// ForceUnloadDriver is UnloadDriver behind the back of those who have it open.
func (n *Node) ForceUnloadDriver() error {
	for i := range n.gpus {
		if err := n.gpus[i].update(n.devices[i].restart); err != nil {
			return fmt.Errorf("unload driver: %w", err)
		}
	}
	return n.state.update(func(s *nodeState) error {
		s.Unloaded = true
		if err := errors.Join(n.unloadModule(s), n.writeModules(otherModules)); err != nil {
			return err
		}
		return n.moveProc("proc/driver/nvidia", stashedProc)
	})
}

// LoadDriver brings the kernel driver back.
func (n *Node) LoadDriver() error {
	return n.state.update(func(s *nodeState) error {
		s.Unloaded = false
		if err := errors.Join(n.loadModule(), n.writeModules(loadedModules)); err != nil {
			return err
		}
		return n.moveProc(stashedProc, "proc/driver/nvidia")
	})
}

// moveProc moves what the driver shows under /proc out of the way, or back; if it is where it should be, it stays.
func (n *Node) moveProc(from, to string) error {
	if n.root == "" {
		return nil
	}
	err := os.Rename(filepath.Join(n.root, from), filepath.Join(n.root, to))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// writeModules replaces the list of kernel modules.
func (n *Node) writeModules(list string) error {
	if n.root == "" {
		return nil
	}
	file := filepath.Join(n.root, modulesFile)
	spare := file + ".spare"
	if err := os.WriteFile(spare, []byte(list), 0o644); err != nil {
		return err
	}
	return os.Rename(spare, file)
}
