// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// step is called before and after everything that changes something; an error keeps what it is called before from happening.
type step func(what string) error

// around does something between its two steps.
func (s step) around(what string, do func() error) error {
	if err := s("before " + what); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return s("after " + what)
}

// stepped is a host with its steps.
func stepped(on Host, s step) Host {
	return Host{
		Hardware: steppedHardware{on.Hardware, s}, Daemons: steppedDaemons{on.Daemons, s},
		Mounts: steppedMounts{on.Mounts, s}, Files: steppedFiles{on.Files, s}, Disk: steppedDisk{on.Disk, s},
	}
}

type (
	steppedHardware struct {
		Hardware
		step
	}
	steppedGPUs struct {
		GPUs
		step
	}
	steppedDaemons struct {
		Daemons
		step
	}
	steppedMounts struct {
		Mounts
		step
	}
	steppedFiles struct {
		Files
		step
	}
	steppedDisk struct {
		store.FileSystem
		step
	}
)

func (h steppedHardware) Open(ctx context.Context) (GPUs, error) {
	if err := h.step("before opening the driver"); err != nil {
		return nil, err
	}
	g, err := h.Hardware.Open(ctx)
	return steppedGPUs{g, h.step}, err
}

func (g steppedGPUs) ComputeMode(ctx context.Context, pci gpu.PCIAddress, uuid string) (int, error) {
	if err := g.step("before reading the compute mode"); err != nil {
		return 0, err
	}
	return g.GPUs.ComputeMode(ctx, pci, uuid)
}

func (g steppedGPUs) SetComputeMode(ctx context.Context, pci gpu.PCIAddress, uuid string, mode int) error {
	return g.around("setting the compute mode", func() error { return g.GPUs.SetComputeMode(ctx, pci, uuid, mode) })
}

func (d steppedDaemons) Start(ctx context.Context, daemon Daemon, record func(ProcessID) error) (p Process, err error) {
	err = d.around("starting a daemon", func() (err error) {
		p, err = d.Daemons.Start(ctx, daemon, record)
		return err
	})
	return p, err
}

func (d steppedDaemons) Ask(ctx context.Context, daemon Daemon, commands ...string) (answer string, err error) {
	err = d.around("asking "+strings.Fields(commands[0])[0], func() (err error) {
		answer, err = d.Daemons.Ask(ctx, daemon, commands...)
		return err
	})
	return answer, err
}

func (d steppedDaemons) Serves(ctx context.Context, daemon Daemon, process ProcessID) (bool, error) {
	if err := d.step("before looking for servers"); err != nil {
		return false, err
	}
	return d.Daemons.Serves(ctx, daemon, process)
}

func (d steppedDaemons) Sweep(ctx context.Context, daemon Daemon) error {
	return d.around("sweeping", func() error { return d.Daemons.Sweep(ctx, daemon) })
}

func (m steppedMounts) Mount(ctx context.Context, t tmpfs) error {
	return m.around("mounting", func() error { return m.Mounts.Mount(ctx, t) })
}

func (m steppedMounts) Unmount(dir string) error {
	return m.around("unmounting", func() error { return m.Mounts.Unmount(dir) })
}

func (f steppedFiles) MakeDirs(p paths) error {
	return f.around("creating directories", func() error { return f.Files.MakeDirs(p) })
}

func (f steppedFiles) Clear(p paths) error {
	return f.around("clearing directories", func() error { return f.Files.Clear(p) })
}

func (f steppedFiles) ShowClients(p paths) error {
	return f.around("showing clients", func() error { return f.Files.ShowClients(p) })
}

func (f steppedFiles) RemoveDirs(p paths) error {
	return f.around("removing directories", func() error { return f.Files.RemoveDirs(p) })
}

func (d steppedDisk) WriteFile(path string, data []byte) error {
	return d.around("writing", func() error { return d.FileSystem.WriteFile(path, data) })
}

func (d steppedDisk) Remove(path string) error {
	return d.around("removing", func() error { return d.FileSystem.Remove(path) })
}
