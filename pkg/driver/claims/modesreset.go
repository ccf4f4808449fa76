// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"sync"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// BeginReset is like Begin for a reset of a GPU, in the MIG mode that it has, on request. Partitions of the policy's layout are destroyed
// first; others, claims and processes keep the GPU from being reset.
func (m *Modes) BeginReset(device, request string) (run func(ctx context.Context) error) {
	return m.begin(device, func(ctx context.Context) error { return m.resetFor(ctx, device, request) })
}

func (m *Modes) resetFor(ctx context.Context, device, request string) error {
	return m.locked(ctx, device, func(b *backend, g *gpu.GPU, left records.ModeChange) error {
		if m.Resets.load(ctx); m.Resets.Done() == request {
			return nil // by the plugin that this one replaces
		}
		ends := m.ending(device, true)
		if err := m.checkIdle(ctx, b, g, ends); err != nil {
			return err
		}
		state, unknown := m.Tool.Query(ctx, g.PCI)
		if ctx.Err() != nil || errors.Is(unknown, gpu.ErrHangs) || errors.Is(unknown, context.DeadlineExceeded) {
			return unknown // it was not asked in time, which says nothing of the GPU
		}
		if left.Persistence = left.Persistence || state.Persistence; unknown != nil && !left.Persistence {
			// A GPU that has failed may say nothing of itself before its reset (NVIDIA/NVSentinel#1692).
			klog.FromContext(ctx).Error(unknown, "Could not read the persistence mode of a GPU; leaving it off after the reset", "gpu", device)
		}
		klog.FromContext(ctx).Info("Resetting a GPU on request", "gpu", device, "uuid", g.UUID, "request", request)
		reset := false
		err := m.perform(ctx, b, g, g.MIG.Enabled, left, func(ctx context.Context, g *gpu.GPU, change *records.ModeChange) error {
			err := m.resetOnly(ctx, g, change.Persistence || unknown != nil)
			if reset = err == nil; reset {
				ends.note(ctx, g)
			}
			return err
		})
		if reset {
			m.Resets.note(ctx, request)
		}
		if reset && m.WasReset != nil {
			m.WasReset(g.PCI)
		}
		return err
	})
}

// resetOnly resets a GPU that this process has closed. persists is set if its persistence mode may be on. A GPU that has failed may refuse
// to leave that, too, and nvidia-smi resets none that is still open.
func (m *Modes) resetOnly(ctx context.Context, g *gpu.GPU, persists bool) error {
	var refused error
	if persists {
		refused = m.Tool.SetPersistence(ctx, g.PCI, false)
	}
	if err := m.Tool.Reset(ctx, g.PCI); err != nil {
		return m.notReset(ctx, g, errors.Join(refused, err), "")
	}
	return nil
}

// Resets knows the last request for a reset that was carried out, so that it is not repeated while the node has its label.
type Resets struct {
	file *store.File[records.Reset] // nil if modes are not changed

	mu      sync.Mutex
	request string
}

// Done returns the last request that was carried out; empty for none.
func (r *Resets) Done() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.request
}

func (r *Resets) set(request string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.request = request
}

// note notes a request that was carried out.
func (r *Resets) note(ctx context.Context, request string) {
	if err := r.file.Write(&records.Reset{Format: records.ResetFormat, Request: request}); err != nil {
		klog.FromContext(ctx).Error(err, "Could not record the reset of a GPU: a plugin that restarts repeats it while the node has the label",
			"request", request)
	}
	r.set(request)
}

// Forget forgets the last request: the same one is a new one from now on.
func (r *Resets) Forget(ctx context.Context) {
	if err := r.file.Remove(); err != nil {
		klog.FromContext(ctx).Error(err, "Could not remove the record of the last reset")
		return
	}
	r.set("")
}

// load reads the last request that was carried out, which another plugin may have done. Without a readable record, that of this
// process counts.
func (r *Resets) load(ctx context.Context) {
	last, err := r.file.Read()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not read the record of the last reset")
	}
	if last != nil {
		r.set(last.Request)
	}
}
