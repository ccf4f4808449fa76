// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/pkg/gpu"
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

// heldBy ends an error with the processes that have a GPU open.
func (m *Modes) heldBy(ctx context.Context, g *gpu.GPU) string {
	holders, err := m.gate.holders(ctx, g, nil)
	if len(holders) == 0 && err != nil {
		return fmt.Sprintf(" (who has the GPU open cannot be found out: %v)", err)
	}
	if len(holders) == 0 && m.HasDRM != nil && m.HasDRM(g) {
		// No process shows, as the client is in the kernel: https://github.com/NVIDIA/mig-parted/issues/181, on A100.
		return ": no process is seen that has it open; the kernel module nvidia_drm has, which keeps it in use on some systems: " +
			"unload it (rmmod nvidia_drm), which takes a node that displays nothing"
	}
	return describeHolders(holders)
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

// usedBy ends an error with the processes on a GPU, or in one of its partitions if that is not nil. The driver counts whoever has a
// partition open (open-gpu-kernel-modules 595.45.04, kernel_mig_manager.c:5628-5634), and NVML lists only programs that compute.
func usedBy(ctx context.Context, b *backend, g *gpu.GPU, part *gpu.Partition) string {
	var holders []Holder
	if part != nil {
		holders, _ = b.holders(ctx, g, part)
	}
	if len(holders) == 0 {
		if pids, err := b.hardware.Processes(ctx, g.PCI); err == nil && len(pids) > 0 {
			return fmt.Sprintf(": it is in use by processes %v", pids)
		}
		holders, _ = b.holders(ctx, g, nil)
	}
	if len(holders) == 0 {
		return ": NVML names no process, and none is seen that has it open: the kernel log (dmesg) may name it"
	}
	// https://github.com/NVIDIA/DCGM/issues/276: "restarting DCGM is the only way".
	leaks := slices.ContainsFunc(holders, func(h Holder) bool {
		return strings.HasPrefix(h.Name, "nv-hostengine") || strings.HasPrefix(h.Name, "dcgm")
	})
	if leaks {
		return ": open in " + listHolders(holders) + ": DCGM may keep partitions that it no longer watches: restart it"
	}
	return ": open in " + listHolders(holders)
}
