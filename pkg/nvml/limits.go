// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"math"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
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

// LimitsMemory reports whether the driver can limit the GPU memory of a cgroup's processes. It reads the limits of the
// root cgroup of the unified hierarchy, such as /sys/fs/cgroup.
func (s *Session) LimitsMemory(ctx context.Context, pci gpu.PCIAddress, root string) bool {
	if !s.calls.lib.HasFunction(getMemoryLimits) || !s.calls.lib.HasFunction(setMemoryLimits) {
		return false
	}
	_, err := ask(ctx, s.calls, pci, getMemoryLimits, errorOnly(func(dev Device) error {
		_, _, _, err := dev.MemoryLimits(root)
		return err
	}))
	if err != nil && !errors.Is(err, gpu.ErrNotFound) {
		klog.FromContext(ctx).V(2).Info("The driver does not limit GPU memory by cgroup", "pci", pci, "reason", err.Error())
		return false
	}
	return true
}

// LimitMemory limits the GPU memory of a cgroup's processes. It opens an NVML session of its own.
func LimitMemory(opts Options, uuid, cgroup string, limit uint64) (err error) {
	path, err := FindLibrary(opts)
	if err != nil {
		return err
	}
	lib := newRealLibrary(path)
	if err := lib.Init(); err != nil {
		return fmt.Errorf("open NVML session with %s: %w", path, err)
	}
	defer func() {
		_, shutdown := bounded(context.Background(), newWatchdog(), "nvmlShutdown", defaultPatience.Read, false,
			func() (struct{}, error) { return struct{}{}, lib.Shutdown() })
		err = errors.Join(err, shutdown)
	}()
	return limitMemory(lib, uuid, cgroup, limit)
}

func limitMemory(lib Library, uuid, cgroup string, limit uint64) error {
	if limit == 0 || limit == math.MaxUint64 {
		return fmt.Errorf("limit the memory of cgroup %s to %d bytes: %w", cgroup, limit, gpu.ErrInvalidArgument)
	}
	if !lib.HasFunction(setMemoryLimits) {
		return fmt.Errorf("limit the memory of cgroup %s: the driver's library has no %s: %w", cgroup, setMemoryLimits, gpu.ErrNotSupported)
	}
	count, err := lib.DeviceCount()
	if err != nil {
		return err
	}
	for i := range count {
		dev, err := bounded(context.Background(), newWatchdog(), "nvmlDeviceGetUUID", defaultPatience.Read, false, func() (Device, error) {
			return deviceOf(lib, i, uuid)
		})
		if err != nil {
			continue // it is about another GPU
		}
		if err := dev.SetMemoryLimits(cgroup, limit, limit); err != nil {
			return fmt.Errorf("limit the memory of cgroup %s on GPU %s to %d bytes: %w", cgroup, uuid, limit, err)
		}
		return nil
	}
	return fmt.Errorf("limit the memory of cgroup %s: GPU %s: %w", cgroup, uuid, gpu.ErrNotFound)
}

// deviceOf returns the GPU at an index if its UUID matches.
func deviceOf(lib Library, index int, uuid string) (Device, error) {
	dev, err := lib.DeviceByIndex(index)
	if err != nil {
		return nil, err
	}
	id, err := dev.UUID()
	if err != nil {
		return nil, err
	}
	if id != uuid {
		return nil, gpu.ErrNotFound
	}
	return dev, nil
}
