package sim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Reboot does to the node what a reboot of the machine does: a new boot id, the driver loaded, lost GPUs back,
// partitions and clients gone. The MIG mode is kept where boards keep it (before Hopper), pending modes come in force.
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

// reset is what a GPU forgets when it is reset. Events stay: they are what was told, not what is.
func (st *gpuState) reset() {
	st.MIG = st.MIGPending
	st.Instances, st.Clients, st.Limits = nil, nil, nil
	st.ComputeMode, st.TimeSlice, st.Recovery = 0, 0, 0
	st.Persistence = false
}

// ResetGPU does what "nvidia-smi --gpu-reset" does: partitions go, the pending MIG mode comes in force. It is refused
// while clients hold the GPU, and on a lost GPU, which only a reboot brings back.
func (n *Node) ResetGPU(index int) error {
	const call = "reset"
	if err := n.checkIndex(index); err != nil {
		return err
	}
	node, err := n.state.load()
	if err != nil {
		return fmt.Errorf("reset GPU %d: %w", index, err)
	}
	if slices.Contains(node.Lost, index) {
		return fail(call, CodeGPUIsLost, "GPU %d fell off the bus", index)
	}
	return n.gpus[index].update(func(st *gpuState) error {
		if who := st.holders(func(Client) bool { return true }); who != "" {
			return fail(call, CodeInUse, "GPU %d is held by %s", index, who)
		}
		st.reset()
		return nil
	})
}

// UnloadDriver takes the kernel driver away: every call fails with DRIVER_NOT_LOADED, /proc/driver/nvidia is gone, and
// what a GPU keeps only while its driver runs is lost. It is refused while clients hold a GPU.
func (n *Node) UnloadDriver() error {
	for i := range n.gpus {
		st, err := n.gpus[i].load()
		if err != nil {
			return fmt.Errorf("unload driver: %w", err)
		}
		if who := st.holders(func(Client) bool { return true }); who != "" {
			return fmt.Errorf("unload driver: module nvidia is in use by %s", who)
		}
	}
	for i := range n.gpus {
		if err := n.gpus[i].update(n.devices[i].restart); err != nil {
			return fmt.Errorf("unload driver: %w", err)
		}
	}
	return n.state.update(func(s *nodeState) error {
		s.Unloaded = true
		return n.moveProc("proc/driver/nvidia", stashedProc)
	})
}

// LoadDriver brings the kernel driver back.
func (n *Node) LoadDriver() error {
	return n.state.update(func(s *nodeState) error {
		s.Unloaded = false
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
