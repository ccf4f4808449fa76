// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// published fails if what is known of a GPU is not what it is.
func (w *modeWorker) published() error {
	st, err := simTool{root: filepath.Join(w.dir, "node")}.status()
	if err != nil {
		return err
	}
	for i, g := range st.GPUs {
		if known := w.session.Node().GPUs[i]; known.MIG.Enabled != g.MIG {
			return fmt.Errorf("GPU %d is in MIG mode: %t, and is published as %t", i, g.MIG, known.MIG.Enabled)
		}
	}
	return nil
}

func (w *modeWorker) check(ctx context.Context) error {
	if err := w.published(); err != nil {
		return err
	}
	st, err := simTool{root: filepath.Join(w.dir, "node")}.status()
	if err != nil {
		return err
	}
	var wrong []error
	for i, g := range st.GPUs {
		known := &w.session.Node().GPUs[i]
		name := known.PCI.DeviceName()
		state, err := simTool{root: filepath.Join(w.dir, "node")}.Query(ctx, known.PCI)
		if err != nil {
			return err
		}
		if err := w.session.Usable(known); err != nil {
			wrong = append(wrong, err)
		}
		if state.Pending != state.Current || state.Persistence != w.truth.Persistence[i] || w.Modes.Left()[name] {
			wrong = append(wrong, fmt.Errorf("GPU %d: %+v, left %t, persistence was %t", i, state, w.Modes.Left()[name], w.truth.Persistence[i]))
		}
		if !w.allocated(name) && state.Current != w.truth.Wants[i] {
			wrong = append(wrong, fmt.Errorf("GPU %d is in MIG mode: %t, and the policy wants %t", i, state.Current, w.truth.Wants[i]))
		}
		if want := map[bool]int{true: 4}[w.truth.Wants[i] && state.Current]; !w.allocated(name) && len(g.Instances) != want {
			wrong = append(wrong, fmt.Errorf("GPU %d has %d partitions, want %d", i, len(g.Instances), want))
		}
	}
	found, corrupt, err := records.List(store.Disk{}, filepath.Join(w.dir, "claims"))
	if err := errors.Join(append(corrupt, err)...); err != nil {
		return err
	}
	if len(found) != len(w.truth.Claims) {
		wrong = append(wrong, fmt.Errorf("there are %d records, and claims %v", len(found), w.truth.Claims))
	}
	for _, r := range found {
		if r.State != records.Prepared || len(r.Devices) != 1 || r.Devices[0].Device != w.truth.Claims[r.Claim.UID] {
			wrong = append(wrong, fmt.Errorf("the record of %s is %s with %v, want %s", r.Claim, r.State, r.Devices, w.truth.Claims[r.Claim.UID]))
		}
		if whole, err := w.intact(ctx, w.backend.Load(), r); err != nil || !whole {
			wrong = append(wrong, fmt.Errorf("claim %s is not intact: %w", r.Claim, err))
		}
	}
	return errors.Join(wrong...)
}

// status is the node as it is, without a session.
func (s simTool) status() (*sim.Status, error) {
	n, err := sim.Open(s.root)
	if err != nil {
		return nil, err
	}
	return n.Status()
}
