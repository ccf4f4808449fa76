// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Functions that limit the GPU memory of a cgroup's processes, since driver release 615.
const (
	getMemoryLimits = "nvmlDeviceGetMemoryLimits_v1"
	setMemoryLimits = "nvmlDeviceSetMemoryLimits_v1"
)

func (d realDevice) MemoryLimits(cgroup string) (soft, hard, used uint64, err error) {
	l, ret := d.dev.GetMemoryLimits_v1(cgroup)
	return l.SoftLimit, l.HardLimit, l.CurrentUsed, check(getMemoryLimits, ret)
}

func (d realDevice) SetMemoryLimits(cgroup string, soft, hard uint64) error {
	return check(setMemoryLimits, d.dev.SetMemoryLimits_v1(cgroup, soft, hard))
}

// LimitsMemory reports whether the driver can limit the GPU memory of a cgroup's processes, given the root of the unified
// hierarchy, such as /sys/fs/cgroup. It is a capability of driver and node: a GPU in MIG mode answers "not supported", but has it
// after MIG mode if other GPUs have it. The error is that of a GPU that does not answer.
func (s *Session) LimitsMemory(ctx context.Context, pci gpu.PCIAddress, root string) (limits bool, err error) {
	if !s.calls.lib.HasFunction(getMemoryLimits) || !s.calls.lib.HasFunction(setMemoryLimits) {
		return false, nil
	}
	node := s.Node()
	asked := []gpu.PCIAddress{pci}
	if g := node.Find(pci.DeviceName()); g != nil && g.MIG.Enabled {
		asked = nil
		for i := range node.GPUs {
			if !node.GPUs[i].MIG.Enabled {
				asked = append(asked, node.GPUs[i].PCI)
			}
		}
		if asked == nil {
			return regionsIn(root), nil // no GPU can be queried now
		}
	}
	cgroup := limitedCgroup(root)
	var unanswered error
	for _, pci := range asked {
		_, err := ask(ctx, s.calls, pci, getMemoryLimits, errorOnly(func(dev Device) error {
			_, _, _, err := dev.MemoryLimits(cgroup)
			return err
		}))
		switch {
		case err == nil || errors.Is(err, gpu.ErrNotFound):
			return true, nil
		case ctx.Err() != nil || errors.Is(err, gpu.ErrHangs) || errors.Is(err, gpu.ErrReleased):
			unanswered = err
		default:
			klog.FromContext(ctx).V(2).Info("The driver does not limit GPU memory by cgroup", "pci", pci, "reason", err.Error())
		}
	}
	return false, unanswered
}

// limitedCgroup returns a cgroup to query. If the kernel limits device memory (dmem, Linux 6.14 and later), the driver answers "not
// supported" for a cgroup without the controller's files, such as the root (NVIDIA MPS documentation, "Memory partitioning"; kernel
// documentation, cgroup-v2, "DMEM"): then a child that has them is used, otherwise the root.
func limitedCgroup(root string) string {
	limited, _ := filepath.Glob(filepath.Join(root, "*", "dmem.max")) // in order
	if len(limited) > 0 {
		return filepath.Dir(limited[0])
	}
	return root
}

// regionsIn reports whether the kernel can limit memory of NVIDIA GPUs. The file exists only in the root.
func regionsIn(root string) bool {
	data, err := os.ReadFile(filepath.Join(root, "dmem.capacity"))
	return err == nil && bytes.Contains(data, []byte("nvidia"))
}

// LimitedGPU is the GPU whose memory is limited.
type LimitedGPU struct {
	PCI  gpu.PCIAddress
	UUID string
}

// LimitMemory limits the GPU memory of a cgroup's processes. It opens an NVML session of its own.
func LimitMemory(opts Options, of LimitedGPU, cgroup string, limit uint64) (err error) {
	if limit == 0 || limit == math.MaxUint64 {
		return fmt.Errorf("limit the memory of cgroup %s to %d bytes: %w", cgroup, limit, gpu.ErrInvalidArgument)
	}
	ctx := context.Background()
	d, err := OpenDirect(ctx, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if !d.lib.HasFunction(setMemoryLimits) {
		return fmt.Errorf("limit the memory of cgroup %s: the driver's library has no %s: %w", cgroup, setMemoryLimits, gpu.ErrNotSupported)
	}
	// No soft limit: it is a reservation, which the kernel adds to all ancestors, where it outlives the container's cgroup (NVIDIA
	// MPS documentation, "Ancestor reservation propagation").
	_, err = directly(ctx, d, of.PCI, of.UUID, changeTimeout, true, errorOnly(func(dev Device) error {
		return dev.SetMemoryLimits(cgroup, 0, limit)
	}))
	if err != nil {
		return fmt.Errorf("limit the memory of cgroup %s on GPU %s to %d bytes: %w", cgroup, of.UUID, limit, err)
	}
	return nil
}
