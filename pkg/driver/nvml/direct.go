// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Direct is a short NVML session without an inventory. It opens only the requested GPUs, because others may be about to be reset:
// "this API causes NVML to initialize the target GPU", and another only where the target is part of SLI (nvml.h,
// nvmlDeviceGetHandleByPciBusId_v2).
type Direct struct {
	lib  Library
	dogs *watchdogs

	mu   sync.Mutex
	used []*watchdog
}

// OpenDirect finds the library and starts a session. Errors name the path of the library.
func OpenDirect(ctx context.Context, opts Options) (*Direct, error) {
	chosen, err := locate(ctx, opts)
	if err != nil {
		return nil, err
	}
	d, err := openDirect(ctx, newRealLibrary(chosen.path), watchdogsOf(chosen.path))
	noteLoaded(chosen.path, err)
	if err != nil {
		return nil, fmt.Errorf("open NVML session with %s: %w", chosen.path, err)
	}
	return d, nil
}

// OpenDirectLibrary starts a session with a given library.
func OpenDirectLibrary(ctx context.Context, lib Library) (*Direct, error) {
	return openDirect(ctx, lib, newWatchdogs())
}

func openDirect(ctx context.Context, lib Library, dogs *watchdogs) (*Direct, error) {
	d := &Direct{lib: lib, dogs: dogs}
	_, err := bounded(ctx, dogs.library, "nvmlInit_v2", changeTimeout, true, func() (struct{}, error) { return struct{}{}, lib.Init() })
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Close ends the session. It fails while one of its calls is running, because nvmlShutdown would free memory in use.
func (d *Direct) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dog := range d.used {
		if dog.busy() {
			return fmt.Errorf("close the NVML session: %w: a call has not returned", gpu.ErrHangs)
		}
	}
	return d.dogs.shutdown(d.lib, changeTimeout)
}

// ComputeMode reads the compute mode of the GPU at an address, which must have the UUID unless that is empty; gpu.ErrInMIGMode in
// MIG mode, gpu.ErrNotSupported where there are none.
func (d *Direct) ComputeMode(ctx context.Context, pci gpu.PCIAddress, uuid string) (int, error) {
	mode, err := directly(ctx, d, pci, uuid, readTimeout, false, directComputeMode)
	if err != nil {
		return 0, fmt.Errorf("read the compute mode of the GPU at %s: %w", pci, err)
	}
	return mode, nil
}

// SetComputeMode sets it. The driver keeps it in memory until it is unloaded: it outlives resets, MIG mode and the last client
// (open-gpu-kernel-modules, gpu_registry.c; nvml.h, nvmlDeviceSetComputeMode).
func (d *Direct) SetComputeMode(ctx context.Context, pci gpu.PCIAddress, uuid string, mode int) error {
	_, err := directly(ctx, d, pci, uuid, changeTimeout, true, errorOnly(func(dev Device) error { return dev.SetComputeMode(mode) }))
	if err != nil {
		return fmt.Errorf("set the compute mode of the GPU at %s to %d: %w", pci, mode, err)
	}
	return nil
}

// directly opens a GPU, verifies its UUID, and calls a function with it.
func directly[T any](
	ctx context.Context, d *Direct, pci gpu.PCIAddress, uuid string, limit time.Duration, changes bool, f func(Device) (T, error),
) (T, error) {
	dog := d.dogs.at(pci)
	d.mu.Lock()
	d.used = append(d.used, dog)
	d.mu.Unlock()
	dev, err := bounded(ctx, dog, fmt.Sprintf("opening the GPU at %s", pci), changeTimeout, true, func() (Device, error) {
		dev, err := d.lib.DeviceByPCI(pci)
		if err != nil {
			return nil, err
		}
		return dev, isGPU(dev, uuid)
	})
	if err != nil {
		var none T
		return none, err
	}
	return bounded(ctx, dog, fmt.Sprintf("a call about the GPU at %s", pci), limit, changes, func() (T, error) { return f(dev) })
}

// isGPU fails if a GPU does not have the UUID; an empty UUID matches any.
func isGPU(dev Device, uuid string) error {
	if uuid == "" {
		return nil
	}
	switch now, err := dev.UUID(); {
	case err != nil:
		return err
	case now != uuid:
		return fmt.Errorf("GPU %s has replaced %s: %w", now, uuid, errors.Join(gpu.ErrReplaced, gpu.ErrNotFound))
	}
	return nil
}
