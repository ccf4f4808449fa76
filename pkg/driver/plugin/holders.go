// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/cdi"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/processes"
	"github.com/cleave-dra/cleave/pkg/driver/smi"
)

// lookTimeout bounds a scan of the open files of all processes. The caller holds the lock of a GPU.
const lookTimeout = 2 * time.Second

// holders finds the processes that have GPUs or partitions open. Only one scan runs at a time: it reads other processes' open files, and
// if it hangs, there must not be a second one.
type holders struct {
	list func(context.Context, *gpu.GPU, *gpu.Partition) ([]processes.Process, error)
	turn chan struct{} // has a value while a scan is running
}

func newHolders(list func(context.Context, *gpu.GPU, *gpu.Partition) ([]processes.Process, error)) *holders {
	return &holders{list: list, turn: make(chan struct{}, 1)}
}

// errLooking: the open files of processes could not be read in time.
var errLooking = errors.New("the open files of the node's processes cannot be read in time")

// of implements claims.FindHolders.
func (h *holders) of(ctx context.Context, g *gpu.GPU, part *gpu.Partition) ([]claims.Holder, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout) // even if the kubelet has given up waiting
	defer cancel()
	select {
	case h.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, errLooking
	}
	type answer struct {
		all []processes.Process
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		defer func() { <-h.turn }()
		all, err := h.list(ctx, g, part)
		answers <- answer{all, err}
	}()
	var found []claims.Holder
	select {
	case a := <-answers:
		for _, p := range a.all {
			found = append(found, claims.Holder(p))
		}
		return found, a.err
	case <-ctx.Done():
		return nil, errLooking
	}
}

// inPods returns a function that reports whether processes all run in pods other than the plugin's own, as far as they still run.
func inPods(own string) func(ctx context.Context, pids []int) bool {
	return func(ctx context.Context, pids []int) bool {
		owners, err := processes.Host().Owners(ctx, pids)
		return err == nil && allInPods(owners, types.UID(own))
	}
}

// allInPods reports whether processes all run in other pods. The plugin's own nvidia-smi, which it runs for claims on other GPUs, too,
// opens all GPUs for a moment.
func allInPods(owners map[int]processes.Owner, own types.UID) bool {
	for _, o := range owners {
		if o.Pod == "" || o.Pod == own {
			return false
		}
	}
	return len(owners) > 0
}

// deviceFiles finds the device files of GPUs and partitions.
type deviceFiles struct {
	config *Config
	tool   *smi.Tool
}

// holders lists the processes that have a GPU open, or one of its partitions if part is not nil.
func (d deviceFiles) holders(ctx context.Context, g *gpu.GPU, part *gpu.Partition) ([]processes.Process, error) {
	if part == nil {
		root := d.tool.Root().Devices()
		return processes.Host().Holding(ctx, filepath.Join(root.Here, fmt.Sprintf("dev/nvidia%d", g.Minor)))
	}
	numbers, err := cdi.CapabilityDevices(os.DirFS(d.config.Procfs), g, part)
	if err != nil {
		return nil, err
	}
	return processes.Host().HoldingDevices(ctx, numbers...)
}

// hasDRM reports whether nvidia_drm has registered a GPU's devices.
func (d deviceFiles) hasDRM(g *gpu.GPU) bool {
	_, err := os.Stat(filepath.Join(d.config.Sysfs, "bus/pci/devices", g.PCI.String(), "drm"))
	return err == nil
}
