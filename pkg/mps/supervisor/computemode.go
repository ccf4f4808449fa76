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
func (b *board) withGPUs(ctx context.Context, purpose string, do func(GPUs) error) (err error) {
	gpus, err := b.s.on.Hardware.Open(ctx)
	if err != nil {
		return fmt.Errorf("open the driver to %s: %w", purpose, err)
	}
	defer func() { err = errors.Join(err, gpus.Close()) }()
	return do(gpus)
}

// takeComputeMode writes the record, with the mode to give back, and lets only MPS use the GPU.
func (b *board) takeComputeMode(ctx context.Context) error {
	if b.s.config.ComputeMode == KeepMode {
		return b.save()
	}
	return b.withGPUs(ctx, "set the compute mode (--compute-mode="+KeepMode+" does without)", func(gpus GPUs) error {
		if b.record.PreviousMode == nil {
			mode, err := gpus.ComputeMode(ctx, b.record.pci(), b.record.UUID)
			if errors.Is(err, gpu.ErrNotSupported) {
				klog.FromContext(ctx).V(4).Info("The GPU has no compute modes", "gpu", b.device)
				return b.save()
			}
			if err != nil {
				return err
			}
			b.record.PreviousMode = &mode
		}
		if err := b.save(); err != nil {
			return err
		}
		return b.setComputeMode(ctx, gpus, nvml.ComputeModeExclusive)
	})
}

// setComputeMode sets a mode and reads it back: success of the call is the driver's word, the mode is what others meet.
func (b *board) setComputeMode(ctx context.Context, gpus GPUs, mode int) error {
	if err := gpus.SetComputeMode(ctx, b.record.pci(), b.record.UUID, mode); err != nil {
		return err
	}
	got, err := gpus.ComputeMode(ctx, b.record.pci(), b.record.UUID)
	if err != nil {
		return fmt.Errorf("read the compute mode back: %w", err)
	}
	if got != mode {
		return fmt.Errorf("set the compute mode of %s: it is %d after the driver reported success for %d", b.device, got, mode)
	}
	return nil
}

// returnComputeMode gives the GPU the mode it had, unless somebody else has changed it since. Until it has succeeded no
// other tenant may have the GPU: in EXCLUSIVE_PROCESS all but the first of its processes fail
// (nvml.h, nvmlComputeMode_t).
func (b *board) returnComputeMode(ctx context.Context) error {
	r := b.record
	if r.PreviousMode == nil {
		return nil
	}
	return b.withGPUs(ctx, "give the compute mode back", func(gpus GPUs) error {
		mode, err := gpus.ComputeMode(ctx, r.pci(), r.UUID)
		switch {
		case errors.Is(err, gpu.ErrNotFound), errors.Is(err, gpu.ErrNotSupported):
			// The GPU was taken out or replaced, or is in MIG mode, which begins with the default.
			klog.FromContext(ctx).Info("A GPU has no compute mode to give back any more", "gpu", b.device, "reason", err.Error())
		case err != nil:
			return err
		case mode != nvml.ComputeModeExclusive:
			klog.FromContext(ctx).V(4).Info("The compute mode was changed by somebody else", "gpu", b.device, "mode", mode)
		case mode != *r.PreviousMode:
			return b.setComputeMode(ctx, gpus, *r.PreviousMode)
		}
		return nil
	})
}

// holdComputeMode sets the mode of a GPU that claims share again where it was lost: a reload of the driver and a reset
// of the GPU bring back the default (nvml.h, nvmlDeviceSetComputeMode: "may be reset … by driver unload"). A daemon
// without a server then belongs to the driver that was there before: it is started anew, with the driver of today. One
// with a server cannot have outlived a reload, since the server holds the driver: somebody set the mode by hand, and its
// clients go on.
func (b *board) holdComputeMode(ctx context.Context) error {
	if b.s.config.ComputeMode == KeepMode || !b.runs() || b.record.PreviousMode == nil {
		return nil
	}
	lost := false
	if err := b.withGPUs(ctx, "check the compute mode", func(gpus GPUs) error {
		mode, err := gpus.ComputeMode(ctx, b.record.pci(), b.record.UUID)
		if err != nil || mode == nvml.ComputeModeExclusive {
			return err
		}
		lost = true
		klog.FromContext(ctx).Info("The compute mode of a GPU shared by MPS was lost, as after a reload of the driver; setting it again",
			"gpu", b.device, "mode", mode, "claims", b.record.Claims)
		return b.setComputeMode(ctx, gpus, nvml.ComputeModeExclusive)
	}); err != nil || !lost {
		return err
	}
	serves, err := b.s.on.Daemons.Serves(ctx, b.daemon(), b.process.ID())
	if err != nil || serves {
		return err
	}
	b.noteLoss(ctx, "its driver was reloaded")
	if err := b.start(ctx); err != nil {
		b.message = err.Error()
		b.restartLater(ctx)
		return fmt.Errorf("start the MPS control daemon of %s anew after its driver was reloaded: %w", b.device, err)
	}
	return nil
}
