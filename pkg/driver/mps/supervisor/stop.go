// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"
)

// dismantle removes MPS from a GPU, and reports success only when the GPU has its compute mode back, or is in MIG mode: then the record
// stays, and CleanUp or whoever needs the whole GPU comes again. It can be repeated, and is not given up when the supervisor stops.
func (g *gpuState) dismantle(ctx context.Context) error {
	logger, began := klog.FromContext(ctx), time.Now()
	ctx = context.WithoutCancel(ctx)
	g.record.Phase, g.record.Claims, g.record.Lost, g.record.Owners = stopping, nil, nil, nil
	err := g.save()
	if err == nil {
		err = g.daemon.end(ctx, g.record.Daemon)
	}
	if err == nil {
		err = g.daemon.removePlace()
	}
	if err == nil {
		err = g.s.computeMode(g.record).giveBack(ctx)
	}
	if errors.Is(err, errLater) {
		if g.message != err.Error() {
			logger.Info("The GPU gets its compute mode back later", "gpu", g.device, "reason", err.Error())
		}
		g.message, g.waits = err.Error(), time.Now()
		g.show()
		return nil
	}
	g.waits = time.Time{}
	if err != nil {
		g.message = err.Error()
		g.show()
		return fmt.Errorf("remove MPS from %s: %w", g.device, err)
	}
	if err := g.s.records.Remove(g.device); err != nil {
		return fmt.Errorf("remove MPS from %s: %w", g.device, err)
	}
	g.record, g.restarts, g.failed, g.message = nil, 0, false, ""
	g.show()
	logger.Info("MPS removed from GPU", "gpu", g.device, "duration", time.Since(began))
	return nil
}
