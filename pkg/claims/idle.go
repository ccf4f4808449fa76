// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// LeaveMIGMode switches MIG mode off on GPUs that have no partition left, where the policy asks for it. A GPU that is in use
// by a monitoring agent is left as it is until the next call: whoever needs the whole GPU waits for the switch anyway. It
// can be repeated at any time.
func (e *Engine) LeaveMIGMode(ctx context.Context) {
	b := e.backend.Load()
	if b.hardware == nil {
		return
	}
	node := b.hardware.Node()
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if o := node.Offer(g); o.Partitions == nil || !o.Partitions.DisableWhenIdle || !e.idle(g) {
			continue
		}
		switch err := e.leaveMIGMode(ctx, b, g); {
		case errors.Is(err, gpu.ErrInUse), errors.Is(err, gpu.ErrPartitioned):
			klog.FromContext(ctx).V(4).Info("MIG mode stays on", "gpu", g.PCI.DeviceName(), "reason", err.Error())
		case err != nil:
			klog.FromContext(ctx).Error(err, "Could not switch MIG mode off", "gpu", g.PCI.DeviceName())
		}
	}
}

// idle reports whether no claim has anything of a GPU and no partition is known there.
func (e *Engine) idle(g *gpu.GPU) bool {
	name := g.PCI.DeviceName()
	return len(e.index.on([]string{name})) == 0 && len(e.standing.of(name)) == 0
}

func (e *Engine) leaveMIGMode(ctx context.Context, b *backend, g *gpu.GPU) error {
	held, err := e.lockFor(ctx, "", []string{g.PCI.DeviceName()})
	if err != nil {
		return err
	}
	defer held.Release()
	if !e.idle(g) {
		return nil // allocated since
	}
	if err := b.hardware.SetMIG(ctx, g.PCI, false); err != nil {
		return fmt.Errorf("switch MIG mode of %s off: %w", g.PCI.DeviceName(), err)
	}
	return nil
}
