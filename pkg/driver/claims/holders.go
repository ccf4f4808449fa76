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

// FindHolders lists the processes that have a GPU open, or one of its partitions if that is not nil, but for this process. NVML lists
// only those that compute. An error means that there may be more.
type FindHolders func(ctx context.Context, g *gpu.GPU, part *gpu.Partition) ([]Holder, error)

// noHolders is the FindHolders that sees no process.
func noHolders(context.Context, *gpu.GPU, *gpu.Partition) ([]Holder, error) { return nil, nil }

// heldBy ends an error about a reset with the processes that have a GPU open and are in its way.
func (m *Modes) heldBy(ctx context.Context, g *gpu.GPU, inUse bool) string {
	holders, err := m.gate.holders(ctx, g, nil)
	holders = slices.DeleteFunc(holders, func(h Holder) bool { return slices.Contains(yielding, h.Name) })
	switch {
	case len(holders) > 0:
		return describeHolders(holders)
	case err != nil:
		return fmt.Sprintf(" (who has the GPU open cannot be found out: %v)", err)
	case inUse && m.HasDRM != nil && m.HasDRM(g):
		// No process shows, as the client is in the kernel: https://github.com/NVIDIA/mig-parted/issues/181, on A100.
		return ": no process is seen that has it open; the kernel module nvidia_drm has, which keeps it in use on some systems: " +
			"unload it (rmmod nvidia_drm), which takes a node that displays nothing"
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

// isDCGM reports whether a process is one of DCGM, which "restarting … is the only way" to have it close partitions
// (https://github.com/NVIDIA/DCGM/issues/276).
func isDCGM(h Holder) bool {
	return strings.HasPrefix(h.Name, "nv-hostengine") || strings.HasPrefix(h.Name, "dcgm")
}

const restartDCGM = ": DCGM may keep partitions that it no longer watches: restart it"

// usedBy ends an error with the processes on a GPU.
func usedBy(ctx context.Context, b *backend, g *gpu.GPU) string {
	if pids, err := b.hardware.Processes(ctx, g.PCI); err == nil && len(pids) > 0 {
		return fmt.Sprintf(": it is in use by processes %v", pids)
	}
	holders, err := b.holders(ctx, g, nil)
	switch {
	case len(holders) > 0:
		return ": NVML names no process; it is open in " + listHolders(holders)
	case err != nil:
		return fmt.Sprintf(": NVML names no process, and who has it open cannot be found out: %v", err)
	default:
		return ": NVML names no process, and none is seen that has it open: the kernel log (dmesg) may name it"
	}
}

// partitionUsedBy ends an error with the processes that have a partition of a GPU open. The driver counts all of them
// (open-gpu-kernel-modules 595.45.04, kernel_mig_manager.c:5628-5634), and NVML lists only programs that compute, in all partitions:
// of these, nobody is named as if it were in this one. named reports whether anybody is.
func partitionUsedBy(ctx context.Context, b *backend, g *gpu.GPU, part *gpu.Partition) (text string, named bool) {
	holders, err := b.holders(ctx, g, part)
	if slices.ContainsFunc(holders, isDCGM) {
		return ": it is open in " + listHolders(holders) + restartDCGM, true
	}
	if len(holders) > 0 {
		return ": it is open in " + listHolders(holders), true
	}
	text = ": no process is seen that has it open, and the kernel log (dmesg) may name it"
	if err != nil {
		text = fmt.Sprintf(": who has it open cannot be found out: %v", err)
	}
	if agents, _ := b.holders(ctx, g, nil); slices.ContainsFunc(agents, isDCGM) {
		agents = slices.DeleteFunc(agents, func(h Holder) bool { return !isDCGM(h) })
		return text + "; the GPU is open in " + listHolders(agents) + restartDCGM, true
	}
	if pids, err := b.hardware.Processes(ctx, g.PCI); err == nil && len(pids) > 0 {
		text += fmt.Sprintf("; in all partitions of the GPU there are processes %v", pids)
	}
	return text, false
}
