// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"
)

// dismantle removes MPS from a GPU. It succeeds only when the compute mode is restored, or the GPU is in MIG mode: then the record
// stays until CleanUp, or a request for the whole GPU, retries. It is idempotent, and continues when the supervisor stops.
func (g *gpuState) dismantle(ctx context.Context) error {
	logger, began := klog.FromContext(ctx), time.Now()
	ctx = context.WithoutCancel(ctx)
	g.restarted()
	g.record.Phase, g.record.Claims, g.record.Lost, g.record.Owners = stopping, nil, nil, nil
	err := g.save()
	if err == nil {
		err = g.daemon.remove(ctx, g.record.Daemon)
	}
	if err == nil {
		err = g.s.computeMode(g.record).restoreMode(ctx)
	}
	if errors.Is(err, errLater) {
		if g.message != err.Error() {
			logger.Info("The compute mode of the GPU will be restored later", "gpu", g.device, "reason", err.Error())
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
