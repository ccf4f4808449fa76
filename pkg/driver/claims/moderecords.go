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

// load reads which changes were begun. One whose record cannot be read is finished, too: the GPU itself shows what is pending.
func (m *Modes) load(ctx context.Context) error {
	if m.ModeOptions == nil {
		return nil
	}
	devices, err := m.Store.Names()
	if err != nil {
		return err
	}
	logger := klog.FromContext(ctx)
	for _, device := range devices {
		change, err := m.Store.Read(device)
		switch {
		case err != nil:
			logger.Error(err, "The record of a change of the MIG mode cannot be read: what is pending on the GPU is taken back", "gpu", device)
			m.note(device, true)
		case change == nil: // gone just now
		case change.BootID != m.ledger.bootID: // a reboot ends what is pending, and the persistence mode
			if err := m.Store.Remove(device); err != nil {
				logger.Error(err, "Leaving the record of a change of the MIG mode of an earlier boot where it is")
			}
		default:
			m.note(device, true)
		}
	}
	return nil
}

// leftOf is the record of a change of a GPU that was cut short in this boot; empty where there is none, and where it is corrupt:
// then it is not known whether the persistence mode was on.
func (m *Modes) leftOf(ctx context.Context, g *gpu.GPU) (records.ModeChange, error) {
	device := g.PCI.DeviceName()
	left, err := m.Store.Read(device)
	if corrupt := (*store.CorruptError)(nil); errors.As(err, &corrupt) {
		klog.FromContext(ctx).Error(err, "The record of a change of the MIG mode is corrupt: the persistence mode stays as it is", "gpu", device)
		return records.ModeChange{}, nil
	}
	if err != nil || left == nil || left.UUID != g.UUID || left.BootID != m.ledger.bootID { // of another GPU that was here
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
