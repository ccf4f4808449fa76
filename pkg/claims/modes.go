// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/records"
	"github.com/cleave-dra/cleave/pkg/smi"
	"github.com/cleave-dra/cleave/pkg/store"
)

// ModeTool is what sets and resets a GPU that this process has closed.
type ModeTool interface {
	Query(ctx context.Context, pci gpu.PCIAddress) (smi.State, error)
	SetMode(ctx context.Context, pci gpu.PCIAddress, enable bool) (said string, err error)
	SetPersistence(ctx context.Context, pci gpu.PCIAddress, on bool) error
	Reset(ctx context.Context, pci gpu.PCIAddress) error
}

// ModeOptions are what changes of the MIG mode need.
type ModeOptions struct {
	// Store has the changes that were begun.
	Store *records.ModeStore
	Tool  ModeTool
	// Holders lists the processes that have a GPU open, but for this one. An error means that there may be more.
	Holders func(ctx context.Context, g *gpu.GPU) ([]Holder, error)
	// Claims calls a function for the claims of all namespaces for as long as it returns true.
	Claims func(ctx context.Context, visit func(claim *resourceapi.ResourceClaim) bool) error
}

// Holder is a process that has a GPU open.
type Holder struct {
	PID  int
	Name string
}

// Modes changes the MIG mode of GPUs that need a reset for it.
//
// A change is on record before the GPU is touched, and the record goes when the GPU is in either mode, nothing is pending, and
// its persistence mode is as it was. A crash in between leaves the record: the GPU is in one of the two modes, is offered as
// such, and the next change begins with what is left.
type Modes struct {
	*ModeOptions // nil where no mode is changed
	ledger       *Ledger
	gate         *gate
	partitions   *Partitions

	mu sync.Mutex
	// left are the GPUs with a change on record.
	left map[string]bool
}

// Left are the devices of GPUs whose change was begun and has not ended.
func (m *Modes) Left() map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := map[string]bool{}
	for device := range m.left {
		left[device] = true
	}
	return left
}

// load reads which changes were begun.
func (m *Modes) load(ctx context.Context) error {
	if m.ModeOptions == nil {
		return nil
	}
	devices, err := m.Store.Names()
	if err != nil {
		return err
	}
	for _, device := range devices {
		change, err := m.Store.Read(device)
		if corrupt := (*store.CorruptError)(nil); errors.As(err, &corrupt) {
			klog.FromContext(ctx).Error(err, "The record of a change of the MIG mode is corrupt: setting it aside", "gpu", device)
			if _, err := m.Store.SetAside(device); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if change != nil && change.BootID != m.ledger.bootID { // a reboot ends what is pending, and the persistence mode
			if err := m.Store.Remove(device); err != nil {
				return err
			}
			continue
		}
		m.note(device, true)
	}
	return nil
}

func (m *Modes) note(device string, left bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left == nil {
		m.left = map[string]bool{}
	}
	if m.left[device] = left; !left {
		delete(m.left, device)
	}
}

// write puts a change on record.
func (m *Modes) write(change *records.ModeChange) error {
	if err := m.Store.Write(change); err != nil {
		return explainWrite(m.Store.Dir(), err)
	}
	m.note(change.GPU, true)
	return nil
}

// done removes a change from the record.
func (m *Modes) done(device string) error {
	if err := m.Store.Remove(device); err != nil {
		return err
	}
	m.note(device, false)
	return nil
}

// Begin begins the change of a GPU's mode, or finishes an earlier one where the GPU is in the mode already. From now on the GPU
// is left out of what Partitions does for all GPUs, until the function returns that does it.
func (m *Modes) Begin(device string, enable bool) (run func(ctx context.Context) error) {
	m.partitions.changing.Store(device, true)
	return func(ctx context.Context) error {
		defer m.partitions.changing.Delete(device)
		m.gate.calls.RLock()
		defer m.gate.calls.RUnlock()
		return m.change(ctx, device, enable)
	}
}

func (m *Modes) change(ctx context.Context, device string, enable bool) error {
	b := m.gate.backend.Load()
	if b.hardware == nil {
		return fmt.Errorf("change the MIG mode of %s: %w", device, b.reason)
	}
	held, err := m.ledger.lockFor(ctx, "", []string{device})
	if err != nil {
		return err
	}
	defer held.Release()
	g := b.hardware.Node().Find(device)
	if g == nil {
		return fmt.Errorf("change the MIG mode of %s: %w", device, gpu.ErrAbsent)
	}
	if err := b.hardware.Usable(g); err != nil {
		return err
	}
	left, err := m.Store.Read(device)
	if err != nil {
		return err
	}
	if left != nil && left.UUID != g.UUID { // of another GPU that was here
		left = nil
	}
	if g.MIG.Enabled == enable {
		return m.settle(ctx, g, left)
	}
	if err := m.checkIdle(ctx, b, g); err != nil {
		return err
	}
	state, err := m.Tool.Query(ctx, g.PCI)
	if err != nil {
		return err
	}
	change := &records.ModeChange{
		Format: records.ModeChangeFormat, BootID: m.ledger.bootID, GPU: device, UUID: g.UUID, Enable: enable,
		Persistence: state.Persistence || left != nil && left.Persistence,
	}
	if err := m.write(change); err != nil {
		return err
	}
	return m.perform(context.WithoutCancel(ctx), b, g, change) // from here on only a kill cuts it short
}

// settle finishes a change that was cut short, of a GPU that is in the mode it is to have.
func (m *Modes) settle(ctx context.Context, g *gpu.GPU, left *records.ModeChange) error {
	state, err := m.Tool.Query(ctx, g.PCI)
	if err != nil {
		return err
	}
	if state.Pending != g.MIG.Enabled {
		if _, err := m.Tool.SetMode(ctx, g.PCI, g.MIG.Enabled); err != nil {
			return err
		}
	}
	if left != nil && left.Persistence && !state.Persistence {
		if err := m.Tool.SetPersistence(ctx, g.PCI, true); err != nil {
			return err
		}
	}
	return m.done(g.PCI.DeviceName())
}

// perform changes the mode of a GPU that nothing uses; the change is on record. If it fails, the mode is what it was.
func (m *Modes) perform(ctx context.Context, b *backend, g *gpu.GPU, change *records.ModeChange) error {
	klog.FromContext(ctx).Info("Changing the MIG mode of a GPU, which takes a reset", "gpu", change.GPU, "uuid", g.UUID,
		"enable", change.Enable)
	if err := b.hardware.Release(ctx, g.PCI); err != nil {
		return errors.Join(err, m.done(change.GPU))
	}
	failed := m.reset(ctx, g, change)
	restored := m.restore(ctx, g, change)
	restored = errors.Join(restored, b.hardware.Retake(ctx, g.PCI))
	if restored == nil {
		restored = m.done(change.GPU)
	}
	return errors.Join(failed, restored)
}

// reset sets the mode of a GPU that this process has closed and resets it, unless the driver has done so by itself.
func (m *Modes) reset(ctx context.Context, g *gpu.GPU, change *records.ModeChange) error {
	if change.Persistence {
		if err := m.Tool.SetPersistence(ctx, g.PCI, false); err != nil {
			return err
		}
	}
	_, setErr := m.Tool.SetMode(ctx, g.PCI, change.Enable)
	state, err := m.Tool.Query(ctx, g.PCI)
	if err == nil && state.Current == change.Enable {
		return nil
	}
	if err := errors.Join(setErr, err); err != nil {
		return err
	}
	resetErr := m.Tool.Reset(ctx, g.PCI)
	state, err = m.Tool.Query(ctx, g.PCI)
	if err == nil && state.Current == change.Enable {
		return nil
	}
	if err := errors.Join(resetErr, err); err != nil {
		return fmt.Errorf("%w%s", err, m.heldBy(ctx, g))
	}
	return fmt.Errorf("nvidia-smi reset the GPU, and its MIG mode is as it was: %w", gpu.ErrResetRequired)
}

// restore ends what is pending after a change that failed, and puts the persistence mode back.
func (m *Modes) restore(ctx context.Context, g *gpu.GPU, change *records.ModeChange) error {
	state, err := m.Tool.Query(ctx, g.PCI)
	if err != nil {
		return err
	}
	if state.Pending != state.Current {
		if _, err := m.Tool.SetMode(ctx, g.PCI, state.Current); err != nil {
			return err
		}
	}
	if change.Persistence && !state.Persistence {
		return m.Tool.SetPersistence(ctx, g.PCI, true)
	}
	return nil
}
