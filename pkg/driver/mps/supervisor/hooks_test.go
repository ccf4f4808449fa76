// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// The hooked ones call step before and after everything that changes something.
type (
	hookedHardware struct {
		Hardware
		step func(string)
	}
	hookedGPUs struct {
		GPUs
		step func(string)
	}
	hookedDaemons struct {
		Daemons
		step func(string)
	}
	hookedMounts struct {
		Mounts
		step func(string)
	}
	hookedFiles struct {
		Files
		step func(string)
	}
	hookedDisk struct {
		store.FileSystem
		step func(string)
	}
)

func (h hookedHardware) Open(ctx context.Context) (GPUs, error) {
	g, err := h.Hardware.Open(ctx)
	return hookedGPUs{g, h.step}, err
}

func (h hookedGPUs) SetComputeMode(ctx context.Context, pci gpu.PCIAddress, uuid string, mode int) error {
	h.step("before SetComputeMode")
	defer h.step("after SetComputeMode")
	return h.GPUs.SetComputeMode(ctx, pci, uuid, mode)
}

func (h hookedDaemons) Start(ctx context.Context, d Daemon, record func(ProcessID) error) (Process, error) {
	h.step("before Start")
	defer h.step("after Start")
	return h.Daemons.Start(ctx, d, record)
}

func (h hookedDaemons) Ask(ctx context.Context, d Daemon, commands ...string) (string, error) {
	if !strings.HasPrefix(commands[0], "get_") {
		h.step("before Ask")
		defer h.step("after Ask")
	}
	return h.Daemons.Ask(ctx, d, commands...)
}

func (h hookedDaemons) Sweep(ctx context.Context, d Daemon) error {
	defer h.step("after Sweep")
	return h.Daemons.Sweep(ctx, d)
}

func (h hookedMounts) Mount(ctx context.Context, t tmpfs) error {
	defer h.step("after Mount")
	return h.Mounts.Mount(ctx, t)
}

func (h hookedMounts) Unmount(dir string) error {
	defer h.step("after Unmount")
	return h.Mounts.Unmount(dir)
}

func (h hookedDisk) WriteFile(path string, data []byte) error {
	h.step("before Write")
	defer h.step("after Write")
	return h.FileSystem.WriteFile(path, data)
}

func (h hookedDisk) Remove(path string) error {
	defer h.step("after Remove")
	return h.FileSystem.Remove(path)
}

func (h hookedFiles) MakeDirs(p paths) error {
	defer h.step("after MakeDirs")
	return h.Files.MakeDirs(p)
}

func (h hookedFiles) Clear(p paths) error {
	defer h.step("after Clear")
	return h.Files.Clear(p)
}

func (h hookedFiles) ShowClients(p paths) error {
	defer h.step("after ShowClients")
	return h.Files.ShowClients(p)
}

func (h hookedFiles) RemoveDirs(p paths) error {
	defer h.step("after RemoveDirs")
	return h.Files.RemoveDirs(p)
}
