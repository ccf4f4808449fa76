// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
)

// computeMode is that of a GPU with a record.
type computeMode struct {
	hardware Hardware
	keep     bool // as it is
	record   *record
}

// with opens the driver for the time of a call.
func (c computeMode) with(ctx context.Context, purpose string, do func(GPUs) error) (err error) {
	gpus, err := c.hardware.Open(ctx)
	if err != nil {
		return fmt.Errorf("open the driver to %s: %w", purpose, err)
	}
	defer func() { err = errors.Join(err, gpus.Close()) }()
	return do(gpus)
}

// take saves the record, including the mode to restore, and reserves the GPU for MPS.
func (c computeMode) take(ctx context.Context, save func() error) error {
	r := c.record
	if c.keep {
		if r.PreviousMode != nil { // set before --compute-mode=keep; the GPU may be closed
			if err := c.restoreMode(ctx); err != nil {
				return err
			}
			r.PreviousMode, r.Closed = nil, false
		}
		return save()
	}
	return c.with(ctx, "set the compute mode (--compute-mode="+KeepMode+" does without)", func(gpus GPUs) error {
		if r.PreviousMode == nil {
			mode, err := gpus.ComputeMode(ctx, r.pci(), r.UUID)
			if errors.Is(err, gpu.ErrNotSupported) {
				klog.FromContext(ctx).V(4).Info("GPU has no compute modes", "gpu", r.Device)
				return save()
			}
			if err != nil {
				return err
			}
			r.PreviousMode = &mode
		}
		if err := save(); err != nil {
			return err
		}
		if err := c.set(ctx, gpus, nvml.ComputeModeExclusive); err != nil {
			return err
		}
		r.Closed = false // saved with the next change
		return nil
	})
}

// close blocks a GPU that has claims but no daemon, until take. CUDA runs without MPS if no daemon listens (man
// nvidia-cuda-mps-control: "the program continues to run as it normally would without MPS"): the first program to start would own
// the GPU, exceeding its claim's limits, and lock out the next daemon's server.
func (c computeMode) close(ctx context.Context, save func() error) error {
	r := c.record
	if c.keep || r.PreviousMode == nil {
		return nil
	}
	return c.with(ctx, "block the GPU", func(gpus GPUs) error {
		mode, err := gpus.ComputeMode(ctx, r.pci(), r.UUID)
		if err != nil || mode != nvml.ComputeModeExclusive { // others changed it
			return err
		}
		before := r.Closed
		r.Closed = true
		if err := save(); err != nil {
			r.Closed = before
			return err
		}
		return c.set(ctx, gpus, nvml.ComputeModeProhibited)
	})
}

// ours reports whether a mode was set by take or close.
func (r *record) ours(mode int) bool {
	return mode == nvml.ComputeModeExclusive || r.Closed && mode == nvml.ComputeModeProhibited
}

// set sets a mode and reads it back, because a successful call does not prove that the mode is in effect.
func (c computeMode) set(ctx context.Context, gpus GPUs, mode int) error {
	r := c.record
	if err := gpus.SetComputeMode(ctx, r.pci(), r.UUID, mode); err != nil {
		return err
	}
	got, err := gpus.ComputeMode(ctx, r.pci(), r.UUID)
	if err != nil {
		return fmt.Errorf("read the compute mode back: %w", err)
	}
	if got != mode {
		return fmt.Errorf("set the compute mode of %s: it is %d after the driver reported success for %d", r.Device, got, mode)
	}
	return nil
}

// errLater is returned by restoreMode while a GPU is in MIG mode, in which its compute mode cannot be set. The mode set before is back
// in effect when the GPU leaves MIG mode.
var errLater = errors.New("the GPU is in MIG mode; its compute mode is restored after that")

// restoreMode restores the GPU's previous mode, unless others have changed it since. Until it succeeds, no other tenant may have the
// GPU: in EXCLUSIVE_PROCESS all but the first of its processes fail, in PROHIBITED all (nvml.h, nvmlComputeMode_t). Partitions can
// be allocated meanwhile.
func (c computeMode) restoreMode(ctx context.Context) error {
	r := c.record
	if r.PreviousMode == nil {
		return nil
	}
	return c.with(ctx, "restore the compute mode", func(gpus GPUs) error {
		mode, err := gpus.ComputeMode(ctx, r.pci(), r.UUID)
		switch {
		case errors.Is(err, gpu.ErrInMIGMode):
			return errLater
		case errors.Is(err, gpu.ErrNotFound), errors.Is(err, gpu.ErrNotSupported):
			// The GPU was removed or replaced, or has no compute modes.
			klog.FromContext(ctx).Info("No compute mode to restore", "gpu", r.Device, "reason", err.Error())
		case err != nil:
			return err
		case !r.ours(mode):
			klog.FromContext(ctx).V(4).Info("Compute mode was changed by others", "gpu", r.Device, "mode", mode)
		case mode != *r.PreviousMode:
			return c.set(ctx, gpus, *r.PreviousMode)
		}
		return nil
	})
}

// retake sets the mode again if it was lost: a reload of the driver restores the default (nvml.h, nvmlDeviceSetComputeMode: "may be
// reset … by driver unload").
func (c computeMode) retake(ctx context.Context) (lost bool, err error) {
	r := c.record
	if c.keep || r.PreviousMode == nil {
		return false, nil
	}
	err = c.with(ctx, "check the compute mode", func(gpus GPUs) error {
		mode, err := gpus.ComputeMode(ctx, r.pci(), r.UUID)
		if err != nil || mode == nvml.ComputeModeExclusive {
			return err
		}
		lost = true
		klog.FromContext(ctx).Info("Compute mode of a GPU shared by MPS was lost, as after a driver reload; setting it again",
			"gpu", r.Device, "mode", mode, "claims", r.Claims)
		return c.set(ctx, gpus, nvml.ComputeModeExclusive)
	})
	return lost, err
}

// holdComputeMode restores a lost mode of a GPU that claims share. A daemon without a server then belongs to the previously loaded
// driver, and is restarted with the current one. A daemon with a server cannot have survived a reload, since the server keeps the
// driver in use: an admin has set the mode by hand, and its clients continue.
func (g *gpuState) holdComputeMode(ctx context.Context) error {
	if !g.runs() {
		return nil
	}
	lost, err := g.s.computeMode(g.record).retake(ctx)
	if err != nil || !lost {
		return err
	}
	serves, err := g.s.on.Daemons.Serves(ctx, g.daemon.Daemon, g.daemon.process.ID())
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
