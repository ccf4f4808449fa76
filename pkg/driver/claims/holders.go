// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Holder is a process that has a GPU or a partition open.
type Holder struct {
	PID  int
	Name string // at most 15 bytes (proc(5), /proc/PID/comm)
}

// FindHolders lists the processes, except this one, that have a GPU open, or one of its partitions if part is not nil. NVML lists
// compute processes only. An error means that the list may be incomplete.
type FindHolders func(ctx context.Context, g *gpu.GPU, part *gpu.Partition) ([]Holder, error)

// noHolders is a FindHolders that finds no process.
func noHolders(context.Context, *gpu.GPU, *gpu.Partition) ([]Holder, error) { return nil, nil }

// heldBy returns the end of a reset error: the processes that have the GPU open and prevent the reset.
func (m *Modes) heldBy(ctx context.Context, g *gpu.GPU, inUse bool) string {
	holders, err := m.gate.holders(ctx, g, nil)
	holders = unyielding(holders)
	switch {
	case len(holders) > 0:
		return describeHolders(holders)
	case err != nil:
		return fmt.Sprintf(" (cannot determine which processes have the GPU open: %v)", err)
	case inUse && m.HasDRM != nil && m.HasDRM(g):
		// No process is visible because the client is in the kernel: https://github.com/NVIDIA/mig-parted/issues/181, on A100.
		return ": no visible process has it open, but the kernel module nvidia_drm has it open, which keeps it in use on some systems: " +
			"unload it (rmmod nvidia_drm) on a node without displays"
	default:
		return ""
	}
}

func describeHolders(holders []Holder) string {
	if len(holders) == 0 {
		return ""
	}
	return ": open in " + listHolders(holders) + "; stop it, or keep it off the node with a label"
}

func listHolders(holders []Holder) string {
	var all []string
	for _, h := range holders {
		all = append(all, fmt.Sprintf("%s (process %d)", h.Name, h.PID))
	}
	return strings.Join(all, ", ")
}

// isDCGM reports whether a process belongs to DCGM, for which "restarting … is the only way" to close partitions
// (https://github.com/NVIDIA/DCGM/issues/276).
func isDCGM(h Holder) bool {
	return strings.HasPrefix(h.Name, "nv-hostengine") || strings.HasPrefix(h.Name, "dcgm")
}

const restartDCGM = ": DCGM may keep partitions that it no longer watches: restart it"

// usedBy returns the end of an error: the processes that use a GPU.
func usedBy(ctx context.Context, b *backend, g *gpu.GPU) string {
	if pids, err := b.hardware.Processes(ctx, g.PCI); err == nil && len(pids) > 0 {
		return fmt.Sprintf(": it is in use by processes %v", pids)
	}
	holders, err := b.holders(ctx, g, nil)
	switch {
	case len(holders) > 0:
		return ": NVML lists no process, but it is open in " + listHolders(holders)
	case err != nil:
		return fmt.Sprintf(": NVML lists no process, and which processes have it open cannot be determined: %v", err)
	default:
		return ": NVML lists no process, and no visible process has it open: the kernel log (dmesg) may name it"
	}
}

// partitionUsedBy returns the end of an error: the processes that have a partition open. The driver counts all of them
// (open-gpu-kernel-modules 595.45.04, kernel_mig_manager.c:5628-5634), but NVML lists only compute processes, and those of all
// partitions: they are not reported as users of this one. named reports whether the text names the processes.
func partitionUsedBy(ctx context.Context, b *backend, g *gpu.GPU, part *gpu.Partition) (text string, named bool) {
	holders, err := b.holders(ctx, g, part)
	if slices.ContainsFunc(holders, isDCGM) {
		return ": it is open in " + listHolders(holders) + restartDCGM, true
	}
	if len(holders) > 0 {
		return ": it is open in " + listHolders(holders), true
	}
	text = ": no visible process has it open; the kernel log (dmesg) may name it"
	if err != nil {
		text = fmt.Sprintf(": cannot determine which processes have it open: %v", err)
	}
	if agents, _ := b.holders(ctx, g, nil); slices.ContainsFunc(agents, isDCGM) {
		agents = slices.DeleteFunc(agents, func(h Holder) bool { return !isDCGM(h) })
		return text + "; the GPU is open in " + listHolders(agents) + restartDCGM, true
	}
	if pids, err := b.hardware.Processes(ctx, g.PCI); err == nil && len(pids) > 0 {
		text += fmt.Sprintf("; processes in any partition of the GPU: %v", pids)
	}
	return text, false
}
