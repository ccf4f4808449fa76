// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// inUseTimeout bounds how long a claim waits for clients, such as a polling monitoring agent, to close a GPU
// whose MIG mode has to change; the kubelet waits 45 s for the whole call. inUseRetry is the time
// between two attempts.
const (
	inUseTimeout = 35 * time.Second
	inUseRetry   = 250 * time.Millisecond
)

// setModes sets the MIG modes that devices need on their GPUs.
func setModes(ctx context.Context, b *backend, devices []device) error {
	done := map[gpu.PCIAddress]bool{}
	for i := range devices {
		d := &devices[i]
		if d.admin || done[d.shape.GPU.PCI] {
			continue
		}
		done[d.shape.GPU.PCI] = true
		if err := setMode(ctx, b, d.shape, d.offer); err != nil {
			return fmt.Errorf("request %q: %w", d.request, err)
		}
		if d.shape.IsPartition() {
			continue // partitions have no NVLinks
		}
		if err := b.hardware.AwaitFabric(ctx, d.shape.GPU); err != nil {
			return fmt.Errorf("request %q: %w", d.request, err)
		}
	}
	return nil
}

// setMode sets the MIG mode that a shape needs on its GPU: on for partitions, off for the whole GPU. If a change needs a
// reset, the mode found at discovery has determined the offer, so there is nothing to change; nor is there if claims
// only get existing partitions. It waits for clients until ctx ends.
func setMode(ctx context.Context, b *backend, s gpu.Shape, offer *policy.Offer) error {
	g := s.GPU
	if !g.MIG.Capable || g.MIG.NeedsReset || g.MIG.Fixed || len(g.MIG.Profiles) == 0 ||
		s.IsPartition() && offer.PartitionMode() == policy.Existing {
		return nil
	}
	err := whileInUse(ctx, b, g, func() error { return b.hardware.SetMIG(ctx, g.PCI, s.IsPartition()) })
	if errors.Is(err, gpu.ErrPartitioned) {
		// They are not allocated: that was checked before.
		return fmt.Errorf("%w: Cleave did not create these partitions: destroy them, for instance with nvidia-smi mig -dgi", err)
	}
	if errors.Is(err, gpu.ErrResetRequired) {
		return fmt.Errorf("%w: devices for the other MIG mode are no longer offered: delete the pod so that it is scheduled again", err)
	}
	return err
}

// createPatiently creates a partition, waiting for clients of the GPU until ctx ends. On boards that need no reset the
// driver may check for clients only when the first GPU instance is created, after accepting any mode change
// (open-gpu-kernel-modules 595.45.04, kernel_mig_manager.c: kmigmgrSetMIGState, called for the first GPU instance, fails
// with NV_ERR_STATE_IN_USE in kmigmgrDisableWatchdog).
func createPatiently(ctx context.Context, b *backend, s gpu.Shape) (part gpu.Partition, err error) {
	err = whileInUse(ctx, b, s.GPU, func() error {
		part, err = b.hardware.CreatePartition(ctx, s)
		return err
	})
	return part, err
}

// whileInUse repeats a change of a GPU while clients block it, until it succeeds, fails for another reason, or ctx ends.
func whileInUse(ctx context.Context, b *backend, g *gpu.GPU, change func() error) error {
	tick := time.NewTicker(inUseRetry)
	defer tick.Stop()
	for {
		err := change()
		if !errors.Is(err, gpu.ErrInUse) || errors.Is(err, gpu.ErrLeftBehind) {
			return err // leftovers must be removed before another attempt
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w%s", err, usedBy(context.WithoutCancel(ctx), b, g))
		case <-tick.C:
		}
	}
}

// LeaveMIGMode switches MIG mode off on GPUs without partitions if the policy says so. A GPU that is in use
// by a monitoring agent is left alone until the next call: a claim for the whole GPU waits for the switch anyway. It
// can be repeated at any time.
func (p *Partitions) LeaveMIGMode(ctx context.Context) {
	b := p.gate.backend.Load()
	if b.hardware == nil {
		return
	}
	node := b.hardware.Node()
	for i := range node.GPUs {
		g := &node.GPUs[i]
		o, changing := node.Offer(g), p.ledger.isChanging(g.PCI.DeviceName())
		if o.Partitions == nil || !o.Partitions.DisableWhenIdle || !p.idle(g) || changing {
			continue
		}
		switch err := p.leaveMIGMode(ctx, b, g); {
		case errors.Is(err, gpu.ErrInUse), errors.Is(err, gpu.ErrPartitioned):
			klog.FromContext(ctx).V(4).Info("MIG mode stays on", "gpu", g.PCI.DeviceName(), "reason", err.Error())
		case err != nil:
			klog.FromContext(ctx).Error(err, "Could not switch MIG mode off", "gpu", g.PCI.DeviceName())
		}
	}
}

// idle reports whether no claim has a device of a GPU and no unclaimed partition of it is known.
func (p *Partitions) idle(g *gpu.GPU) bool {
	name := g.PCI.DeviceName()
	return len(p.ledger.index.on(name, "").all) == 0 && len(p.unclaimed.of(name)) == 0
}

func (p *Partitions) leaveMIGMode(ctx context.Context, b *backend, g *gpu.GPU) error {
	held, err := p.ledger.lockFor(ctx, "", []string{g.PCI.DeviceName()})
	if err != nil {
		return err
	}
	defer held.Release()
	if !p.idle(g) {
		return nil // allocated meanwhile
	}
	if err := b.hardware.SetMIG(ctx, g.PCI, false); err != nil {
		return fmt.Errorf("switch MIG mode of %s off: %w", g.PCI.DeviceName(), err)
	}
	return nil
}
