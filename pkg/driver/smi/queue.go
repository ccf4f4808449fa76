// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// queue orders runs of nvidia-smi: each opens GPUs, and one that hangs in the driver does not end when it is killed.
type queue struct {
	mu      sync.Mutex
	running []*program
}

// program is a run of nvidia-smi that has not ended.
type program struct {
	what  string
	pci   gpu.PCIAddress
	alone bool
	since time.Time
	// over is closed when it has ended or counts as hanging.
	over chan struct{}
	late bool
}

// begin waits until a run may start; one that must run alone waits for all others. It fails at once if it would wait for a hanging
// one.
func (q *queue) begin(ctx context.Context, p *program) error {
	for {
		other, err := q.tryBegin(p)
		if other == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", other.what, ctx.Err())
		case <-other.over:
		}
	}
}

// tryBegin starts a run unless it has to wait for another one; the error is set if that one hangs.
func (q *queue) tryBegin(p *program) (other *program, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, other := range q.running {
		switch {
		case other.late && (p.alone || p.pci == other.pci):
			return nil, other.hangs()
		case !other.late && (p.alone || other.alone):
			return other, nil
		}
	}
	p.since, p.over = time.Now(), make(chan struct{})
	q.running = append(q.running, p)
	return nil, nil //nolint:nilnil // there is none to wait for
}

// end notes that a run has ended.
func (q *queue) end(ctx context.Context, p *program) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running = slices.DeleteFunc(q.running, func(other *program) bool { return other == p })
	if p.late {
		klog.FromContext(ctx).Info("Hanging nvidia-smi has ended", "command", p.what, "duration", time.Since(p.since))
		return
	}
	close(p.over)
}

// expire marks a run as hanging, unless it has just ended.
func (q *queue) expire(ctx context.Context, p *program) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !p.late && slices.Contains(q.running, p) {
		p.late = true
		close(p.over)
		klog.FromContext(ctx).Error(gpu.ErrHangs, "nvidia-smi does not end", "command", p.what, "duration", time.Since(p.since))
	}
	return p.hangs()
}

func (p *program) hangs() error {
	return fmt.Errorf("%w: %s has not ended since %s: look at the kernel's log (dmesg) for what the driver waits for",
		gpu.ErrHangs, p.what, p.since.UTC().Format(time.RFC3339))
}
