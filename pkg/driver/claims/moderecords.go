// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// load reads the changes that were started. A change with a corrupt record is finished as well: the GPU itself shows the pending mode.
func (m *Modes) load(ctx context.Context) error {
	if m.ModeOptions == nil {
		return nil
	}
	m.Resets.load(ctx)
	devices, err := m.Store.Names()
	if err != nil {
		return err
	}
	logger := klog.FromContext(ctx)
	for _, device := range devices {
		change, err := m.Store.Read(device)
		switch {
		case err != nil:
			logger.Error(err, "The record of a MIG mode change cannot be read; a pending mode of the GPU will be reverted", "gpu", device)
			m.note(device, true)
		case change == nil: // removed meanwhile
		case change.BootID != m.ledger.bootID: // a reboot clears the pending mode and the persistence mode
			if err := m.Store.Remove(device); err != nil {
				logger.Error(err, "Could not remove the record of a MIG mode change of an earlier boot")
			}
		default:
			m.note(device, true)
		}
	}
	return nil
}

// leftOf returns the record of a change of a GPU that was interrupted in this boot; empty if there is none, or if it is corrupt,
// in which case the previous persistence mode is unknown.
func (m *Modes) leftOf(ctx context.Context, g *gpu.GPU) (records.ModeChange, error) {
	device := g.PCI.DeviceName()
	left, err := m.Store.Read(device)
	if corrupt := (*store.CorruptError)(nil); errors.As(err, &corrupt) {
		klog.FromContext(ctx).Error(err, "The record of a MIG mode change is corrupt; leaving the persistence mode unchanged", "gpu", device)
		return records.ModeChange{}, nil
	}
	if err != nil || left == nil || left.UUID != g.UUID || left.BootID != m.ledger.bootID { // of a replaced GPU, or an earlier boot
		return records.ModeChange{}, err
	}
	return *left, nil
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

func (m *Modes) write(change *records.ModeChange) error {
	if err := m.Store.Write(change); err != nil {
		return explainWrite(m.Store.Dir(), err)
	}
	m.note(change.GPU, true)
	return nil
}

// done removes the record of a change.
func (m *Modes) done(device string) error {
	if err := m.Store.Remove(device); err != nil {
		return err
	}
	m.note(device, false)
	return nil
}
