// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/nvml"
)

// withGPUs opens the driver for the time of a call.
func (g *gpuState) withGPUs(ctx context.Context, purpose string, do func(GPUs) error) (err error) {
	gpus, err := g.s.on.Hardware.Open(ctx)
	if err != nil {
		return fmt.Errorf("open the driver to %s: %w", purpose, err)
	}
	defer func() { err = errors.Join(err, gpus.Close()) }()
	return do(gpus)
}

// takeComputeMode writes the record, with the mode to restore, and lets only MPS use the GPU.
func (g *gpuState) takeComputeMode(ctx context.Context) error {
	if g.s.config.ComputeMode == KeepMode {
		return g.save()
	}
	return g.withGPUs(ctx, "set the compute mode (--compute-mode="+KeepMode+" does without)", func(gpus GPUs) error {
		if g.record.PreviousMode == nil {
			mode, err := gpus.ComputeMode(ctx, g.record.pci(), g.record.UUID)
			if errors.Is(err, gpu.ErrNotSupported) {
				klog.FromContext(ctx).V(4).Info("GPU has no compute modes", "gpu", g.device)
				return g.save()
			}
			if err != nil {
				return err
			}
			g.record.PreviousMode = &mode
		}
		if err := g.save(); err != nil {
			return err
		}
		return g.setComputeMode(ctx, gpus, nvml.ComputeModeExclusive)
	})
}

// setComputeMode sets a mode and reads it back: success of the call is the driver's word, the mode is what other processes find.
func (g *gpuState) setComputeMode(ctx context.Context, gpus GPUs, mode int) error {
	if err := gpus.SetComputeMode(ctx, g.record.pci(), g.record.UUID, mode); err != nil {
		return err
	}
	got, err := gpus.ComputeMode(ctx, g.record.pci(), g.record.UUID)
	if err != nil {
		return fmt.Errorf("read the compute mode back: %w", err)
	}
	if got != mode {
		return fmt.Errorf("set the compute mode of %s: it is %d after the driver reported success for %d", g.device, got, mode)
	}
	return nil
}

// returnComputeMode gives the GPU the mode it had, unless it has been changed since. Until it has succeeded no
// other tenant may have the GPU: in EXCLUSIVE_PROCESS all but the first of its processes fail
// (nvml.h, nvmlComputeMode_t).
func (g *gpuState) returnComputeMode(ctx context.Context) error {
	r := g.record
	if r.PreviousMode == nil {
		return nil
	}
	return g.withGPUs(ctx, "restore the compute mode", func(gpus GPUs) error {
		mode, err := gpus.ComputeMode(ctx, r.pci(), r.UUID)
		switch {
		case errors.Is(err, gpu.ErrNotFound), errors.Is(err, gpu.ErrNotSupported):
			// The GPU was taken out or replaced, or is in MIG mode, which begins with the default.
			klog.FromContext(ctx).Info("No compute mode to restore", "gpu", g.device, "reason", err.Error())
		case err != nil:
			return err
		case mode != nvml.ComputeModeExclusive:
			klog.FromContext(ctx).V(4).Info("Compute mode was changed by others", "gpu", g.device, "mode", mode)
		case mode != *r.PreviousMode:
			return g.setComputeMode(ctx, gpus, *r.PreviousMode)
		}
		return nil
	})
}

// holdComputeMode sets the mode of a GPU that claims share again where it was lost: a reload of the driver and a reset
// of the GPU bring back the default (nvml.h, nvmlDeviceSetComputeMode: "may be reset … by driver unload"). A daemon
// without a server then belongs to the driver that was there before: it is started anew, with the driver of today. One
// with a server cannot have outlived a reload, since the server holds the driver: an admin set the mode by hand, and its
// clients go on.
func (g *gpuState) holdComputeMode(ctx context.Context) error {
	if g.s.config.ComputeMode == KeepMode || !g.runs() || g.record.PreviousMode == nil {
		return nil
	}
	lost := false
	if err := g.withGPUs(ctx, "check the compute mode", func(gpus GPUs) error {
		mode, err := gpus.ComputeMode(ctx, g.record.pci(), g.record.UUID)
		if err != nil || mode == nvml.ComputeModeExclusive {
			return err
		}
		lost = true
		klog.FromContext(ctx).Info("Compute mode of a GPU shared by MPS was lost, as after a driver reload; setting it again",
			"gpu", g.device, "mode", mode, "claims", g.record.Claims)
		return g.setComputeMode(ctx, gpus, nvml.ComputeModeExclusive)
	}); err != nil || !lost {
		return err
	}
	serves, err := g.s.on.Daemons.Serves(ctx, g.daemon(), g.process.ID())
	if err != nil || serves {
		return err
	}
	g.noteLoss(ctx, "its driver was reloaded")
	if err := g.start(ctx); err != nil {
		g.message = err.Error()
		g.restartLater(ctx)
		return fmt.Errorf("restart the MPS control daemon of %s after its driver was reloaded: %w", g.device, err)
	}
	return nil
}
