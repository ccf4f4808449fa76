// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
)

// Hardware simulates hardware events of GPUs, by their indexes, with or without a driver.
type Hardware struct {
	*core
	faults *Faults
}

// Lose makes a GPU fall off the bus: its calls return GPU_IS_LOST, and so does, once, an event set that watches it.
func (h Hardware) Lose(index int) error {
	if err := h.checkIndex(index); err != nil {
		return err
	}
	return h.state.update(func(s *nodeState) error {
		if !slices.Contains(s.Lost, index) {
			s.Lost = append(s.Lost, index)
			slices.Sort(s.Lost)
		}
		return nil
	})
}

// Replace replaces a GPU with another one of the same board.
func (h Hardware) Replace(index int, uuid string) error {
	if err := h.checkIndex(index); err != nil {
		return err
	}
	return h.state.update(func(s *nodeState) error {
		if s.UUIDs == nil {
			s.UUIDs = map[int]string{}
		}
		s.UUIDs[index] = uuid
		return nil
	})
}

// restore ends the simulated events of a GPU, including its absence, which moves files.
func (h Hardware) restore(index int) error {
	node, err := h.state.load()
	if err != nil {
		return err
	}
	if slices.Contains(node.Absent, index) {
		if err := h.SetAbsent(index, false); err != nil {
			return err
		}
	}
	st, err := h.gpus[index].load()
	if err != nil {
		return err
	}
	if st.Recovery != 0 {
		if err := h.SetRecoveryAction(index, 0); err != nil {
			return err
		}
	}
	if st.FabricState == 0 && st.Virtualization == VirtualizationNone && !st.RemapFailed {
		return nil
	}
	return h.gpus[index].update(func(st *gpuState) error {
		st.FabricState, st.FabricLooks, st.Virtualization, st.RemapFailed = 0, 0, VirtualizationNone, false
		return nil
	})
}

// SetFabricState sets the state of a GPU's registration with its NVLink fabric, one of Fabric*: for a number of calls, or forever
// if looks is zero. State zero restores the node model's.
func (h Hardware) SetFabricState(index, state, looks int) error {
	if state < 0 || state > FabricRouteUnhealthy || looks < 0 {
		return fmt.Errorf("no fabric state %d for %d calls: they are 0 to %d", state, looks, FabricRouteUnhealthy)
	}
	if err := h.checkIndex(index); err != nil {
		return err
	}
	return h.gpus[index].update(func(st *gpuState) error {
		st.FabricState, st.FabricLooks = state, looks
		return nil
	})
}

// SetLinks trains the NVLinks of a GPU, or takes them down.
func (h Hardware) SetLinks(index int, up bool) error {
	if err := h.checkIndex(index); err != nil {
		return err
	}
	return h.state.update(func(s *nodeState) error {
		s.LinksDown = without(s.LinksDown, index, !up)
		return nil
	})
}

// RaiseXID makes a GPU report an XID for the whole GPU.
func (h Hardware) RaiseXID(index int, xid uint64) error {
	return h.Raise(index, Event{Type: EventXID, Data: xid, GPUInstance: noInstance, ComputeInstance: noInstance})
}

// Raise makes a GPU report an event; the Device of e is ignored.
func (h Hardware) Raise(index int, e Event) error {
	if err := h.checkIndex(index); err != nil {
		return fmt.Errorf("raise event: %w", err)
	}
	return h.gpus[index].update(func(st *gpuState) error {
		st.addEvent(event{Type: e.Type, Data: e.Data, GPUInstance: e.GPUInstance, ComputeInstance: e.ComputeInstance})
		return nil
	})
}

// FailRemap makes a row of a GPU's memory fail to be remapped, as the board records for good, and reports XID 64.
func (h Hardware) FailRemap(index int) error {
	if err := h.checkIndex(index); err != nil {
		return fmt.Errorf("fail a remapping: %w", err)
	}
	return h.gpus[index].update(func(st *gpuState) error {
		st.RemapFailed = true
		st.addEvent(event{Type: EventXID, Data: 64, GPUInstance: noInstance, ComputeInstance: noInstance})
		return nil
	})
}

// maxRecoveryAction is the last of NVML_GPU_RECOVERY_ACTION_*.
const maxRecoveryAction = 7

// SetRecoveryAction sets a GPU's field 230 (NVML_GPU_RECOVERY_ACTION_*: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain
// and reset, 5 recover the IMEX domain, 6 bus reset, 7 system reboot), and reports EventGPURecoveryAction.
func (h Hardware) SetRecoveryAction(index, action int) error {
	if err := h.checkIndex(index); err != nil {
		return fmt.Errorf("set recovery action: %w", err)
	}
	if action < 0 || action > maxRecoveryAction {
		return fmt.Errorf("set recovery action: no action %d: they are 0 to %d", action, maxRecoveryAction)
	}
	return h.gpus[index].update(func(st *gpuState) error {
		st.Recovery = action
		st.addEvent(event{Type: EventGPURecoveryAction, GPUInstance: noInstance, ComputeInstance: noInstance})
		return nil
	})
}
