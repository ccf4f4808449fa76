// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/smi"
)

// ModeTool sets the mode of, and resets, a GPU that this process has closed.
type ModeTool interface {
	Query(ctx context.Context, pci gpu.PCIAddress) (smi.State, error)
	SetMode(ctx context.Context, pci gpu.PCIAddress, enable bool) (said string, err error)
	SetPersistence(ctx context.Context, pci gpu.PCIAddress, on bool) error
	Reset(ctx context.Context, pci gpu.PCIAddress) error
}

// ModeOptions are the dependencies of MIG mode changes.
type ModeOptions struct {
	// Store has the changes that were started.
	Store *records.ModeStore
	Tool  ModeTool
	// HasDRM reports whether the kernel module nvidia_drm uses a GPU; nil for never.
	HasDRM func(g *gpu.GPU) bool
	// InPods reports whether processes all run in pods; nil for never.
	InPods func(ctx context.Context, pids []int) bool
	// Claims calls a function for the claims of all namespaces for as long as it returns true.
	Claims func(ctx context.Context, visit func(claim *resourceapi.ResourceClaim) bool) error
	// Overtaken is called after a change, with the GPU as it was, its new mode, and the claims that were allocated devices of it too late
	// to be noticed before: they cannot be prepared. May be nil.
	Overtaken func(g *gpu.GPU, enabled bool, claims []records.Claim)
	// Last has the last reset that was carried out on request. WasReset is called after each; may be nil.
	Last     *store.File[records.Reset]
	WasReset func(pci gpu.PCIAddress)
}

// Modes changes the MIG mode of GPUs that need a reset for it, and resets GPUs on request.
//
// A change is recorded before the GPU is touched; the record is removed when the GPU is in either mode, no mode is pending, and
// its persistence mode is restored. A crash in between leaves the record: the GPU is in one of the two modes, is offered
// accordingly, and the next change starts by finishing the interrupted one.
type Modes struct {
	*ModeOptions // nil if modes are not changed
	ledger       *Ledger
	gate         *gate
	partitions   *Partitions
	Resets       Resets

	mu sync.Mutex
	// left are the GPUs with a recorded change.
	left map[string]bool
}

// Left returns the devices of GPUs with an unfinished change.
func (m *Modes) Left() map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := map[string]bool{}
	for device := range m.left {
		left[device] = true
	}
	return left
}

// Begin prepares the change of a GPU's mode, or the completion of an earlier change if the GPU is in that mode already; run performs
// it. Until run returns, Partitions skips the GPU in operations on all GPUs.
func (m *Modes) Begin(device string, enable bool) (run func(ctx context.Context) error) {
	return m.begin(device, func(ctx context.Context) error { return m.change(ctx, device, enable) })
}

// begin implements Begin for whatever closes a GPU.
func (m *Modes) begin(device string, do func(ctx context.Context) error) (run func(ctx context.Context) error) {
	changing := &m.ledger.changing
	changing.Store(device, true)
	return func(ctx context.Context) error {
		defer changing.Delete(device)
		m.gate.calls.RLock()
		defer m.gate.calls.RUnlock()
		return do(ctx)
	}
}

func (m *Modes) change(ctx context.Context, device string, enable bool) error {
	var changed *gpu.GPU
	err := m.locked(ctx, device, func(b *backend, g *gpu.GPU, left records.ModeChange) error {
		if g.MIG.Enabled == enable {
			return m.settle(ctx, b, g, left)
		}
		if err := m.checkIdle(ctx, b, g, m.ending(device, false)); err != nil {
			return err
		}
		state, err := m.Tool.Query(ctx, g.PCI)
		if err != nil {
			return err
		}
		left.Persistence = left.Persistence || state.Persistence
		klog.FromContext(ctx).Info("Changing the MIG mode of a GPU, which requires a reset", "gpu", device, "uuid", g.UUID, "enable", enable)
		err = m.perform(ctx, b, g, enable, left, m.reset)
		if errors.Is(b.hardware.Usable(g), gpu.ErrModeChanged) { // the inventory as published has the old mode until the next plan
			changed = g
		}
		return err
	})
	if changed != nil {
		m.reportOvertaken(ctx, changed, enable)
	}
	return err
}

// locked calls a function with a GPU locked, and with the record of a change of it that was interrupted; an empty one for none.
func (m *Modes) locked(ctx context.Context, device string, do func(b *backend, g *gpu.GPU, left records.ModeChange) error) error {
	b := m.gate.backend.Load()
	if b.hardware == nil {
		return fmt.Errorf("close %s: %w", device, b.reason)
	}
	held, err := m.ledger.lockFor(ctx, "", []string{device})
	if err != nil {
		return err
	}
	defer held.Release()
	g := b.hardware.Node().Find(device)
	if g == nil {
		return fmt.Errorf("close %s: %w", device, gpu.ErrAbsent)
	}
	if err := b.hardware.Usable(g); err != nil {
		return err
	}
	left, err := m.leftOf(ctx, g)
	if err != nil {
		return err
	}
	return do(b, g, left)
}

// settle finishes an interrupted change of a GPU that is in the desired mode. If the GPU has changed its mode by itself,
// it is read again.
func (m *Modes) settle(ctx context.Context, b *backend, g *gpu.GPU, left records.ModeChange) error {
	state, err := m.takeBack(ctx, g, left.Persistence)
	if err != nil {
		return err
	}
	if state.Current != g.MIG.Enabled {
		klog.FromContext(ctx).Info("The MIG mode of a GPU has changed since it was read; reading it again", "gpu", g.PCI.DeviceName(),
			"enabled", state.Current)
		if err := b.hardware.Retake(ctx, g.PCI); err != nil {
			return err
		}
	}
	return m.done(g.PCI.DeviceName())
}

// perform records a change of an idle GPU, closes it and calls a function that changes it, which only a kill interrupts. If it fails, the
// mode is unchanged. left is the record of an interrupted change, if any, with the persistence mode to be restored.
func (m *Modes) perform(ctx context.Context, b *backend, g *gpu.GPU, enable bool, left records.ModeChange,
	do func(ctx context.Context, g *gpu.GPU, change *records.ModeChange) error) error {
	change := &records.ModeChange{
		Format: records.ModeChangeFormat, BootID: m.ledger.bootID, GPU: g.PCI.DeviceName(), UUID: g.UUID, Enable: enable,
		Persistence: left.Persistence,
	}
	if err := m.write(change); err != nil {
		return err
	}
	listing := ctx // is aborted if the plugin ends: it would be killed meanwhile
	ctx = context.WithoutCancel(ctx)
	if err := b.hardware.Release(ctx, g.PCI); err != nil {
		if left.GPU != "" {
			return err // what was interrupted is still to be restored
		}
		return errors.Join(err, m.done(change.GPU))
	}
	// Check again, as late as possible: the scheduler may have decided before it saw that the devices are withdrawn.
	failed := m.checkUnprepared(listing, change.GPU, enable == g.MIG.Enabled)
	if failed == nil {
		failed = do(ctx, g, change)
	}
	_, restored := m.takeBack(ctx, g, change.Persistence)
	restored = errors.Join(restored, b.hardware.Retake(ctx, g.PCI))
	if restored == nil {
		restored = m.done(change.GPU)
	}
	return errors.Join(failed, restored)
}

// reset sets the mode of a GPU that this process has closed, and resets it unless the driver has already applied the mode.
func (m *Modes) reset(ctx context.Context, g *gpu.GPU, change *records.ModeChange) error {
	if change.Persistence {
		if err := m.Tool.SetPersistence(ctx, g.PCI, false); err != nil {
			return err
		}
	}
	said, setErr := m.Tool.SetMode(ctx, g.PCI, change.Enable)
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
		return m.notReset(ctx, g, err, said)
	}
	return fmt.Errorf("the GPU reset succeeded but the MIG mode did not change: %w%s", gpu.ErrResetRequired, printed(said))
}

// notReset completes the error of a reset with what nvidia-smi said of a mode, if anything, and with who has the GPU open.
func (m *Modes) notReset(ctx context.Context, g *gpu.GPU, err error, said string) error {
	inUse := strings.Contains(strings.ToLower(err.Error()+said), "in use by another client") // NVML_ERROR_IN_USE, as nvidia-smi has it
	return fmt.Errorf("%w%s%s", err, printed(said), m.heldBy(ctx, g, inUse))
}

// takeBack reverts a pending mode, switches the persistence mode on if required, and verifies both. It returns the resulting
// state of the GPU.
func (m *Modes) takeBack(ctx context.Context, g *gpu.GPU, persistence bool) (smi.State, error) {
	state, err := m.Tool.Query(ctx, g.PCI)
	if err != nil {
		return state, err
	}
	pending, off := state.Pending != state.Current, persistence && !state.Persistence
	if !pending && !off {
		return state, nil
	}
	said := ""
	if pending {
		if said, err = m.Tool.SetMode(ctx, g.PCI, state.Current); err != nil {
			return state, err
		}
	}
	if off {
		if err := m.Tool.SetPersistence(ctx, g.PCI, true); err != nil {
			return state, err
		}
	}
	if state, err = m.Tool.Query(ctx, g.PCI); err != nil {
		return state, err
	}
	if state.Pending != state.Current {
		return state, fmt.Errorf("nvidia-smi reverted the MIG mode, but a change is still pending: %w%s", gpu.ErrResetRequired, printed(said))
	}
	if persistence && !state.Persistence {
		return state, errors.New("nvidia-smi switched the persistence mode on, but it is still off")
	}
	return state, nil
}

// printed returns the end of an error: the output of nvidia-smi about a mode, such as why it is pending.
func printed(said string) string {
	if said == "" {
		return ""
	}
	return fmt.Sprintf(" (nvidia-smi -mig printed %q)", said)
}
