// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/killtest"
)

// Unmanaged partitions, among the steps at which the plugin is killed: they are created before it starts, and in place of its
// own while the driver is reloaded or released. None may ever be destroyed, which the serial numbers of the simulation show.

// unmanaged is a GPU instance that the plugin did not create.
type unmanaged struct {
	GPU    int    `json:"gpu"`
	ID     int    `json:"id"`
	Serial uint64 `json:"serial"`
}

// instancesNow lists what is on the boards.
func instancesNow(node *sim.Node) ([]unmanaged, error) {
	st, err := node.Status()
	if err != nil {
		return nil, err
	}
	var all []unmanaged
	for _, g := range st.GPUs {
		for _, p := range g.Instances {
			gi, err := node.Device(g.Index).MIG().GPUInstanceByID(p.ID)
			if err != nil {
				return nil, err
			}
			all = append(all, unmanaged{g.Index, p.ID, gi.Serial()})
		}
	}
	return all, nil
}

// disown notes that all existing instances are unmanaged.
func (c *clusterTruth) disown(node *sim.Node) (err error) {
	c.Unmanaged, err = instancesNow(node)
	return err
}

// checkUnmanaged fails if an unmanaged instance was destroyed.
func (c *clusterTruth) checkUnmanaged(node *sim.Node) error {
	have, err := instancesNow(node)
	if err != nil {
		return err
	}
	for _, u := range c.Unmanaged {
		if !slices.Contains(have, u) {
			return fmt.Errorf("GPU instance %d of GPU %d, which the plugin did not create, was destroyed", u.ID, u.GPU)
		}
	}
	return nil
}

func (w *worker) isUnmanaged(gpuIndex int, gi sim.InstanceStatus) bool {
	handle, err := w.node.Device(gpuIndex).MIG().GPUInstanceByID(gi.ID)
	return err == nil && slices.Contains(w.truth.Unmanaged, unmanaged{gpuIndex, gi.ID, handle.Serial()})
}

// anyUnmanaged reports whether a GPU has an unmanaged instance.
func (w *worker) anyUnmanaged(gpuIndex int) bool {
	return slices.ContainsFunc(w.truth.Unmanaged, func(u unmanaged) bool { return u.GPU == gpuIndex })
}

// reload reloads the driver while no plugin runs. Now and then another tool then creates the partitions that were there, in
// the same places.
func reload(dir string, node *sim.Node, random *rand.Rand) error {
	var truth clusterTruth
	if err := errors.Join(killtest.ReadTruth(dir, &truth), node.Driver().ForceReload(random.IntN(3) > 0)); err != nil {
		return err
	}
	truth.lostPartitions(random)
	return errors.Join(truth.disown(node), killtest.WriteTruth(dir, truth))
}

// release is the release of the driver by the node's label, with a reset of the GPUs meanwhile, or with nothing done to them.
func (w *worker) release(ctx context.Context) error {
	b := w.backend.Load()
	w.SetWaiting(gpu.ErrDriverNotLoaded)
	w.Quiesce()
	if err := w.Ledger.EndSession(ctx, b.hardware); err != nil {
		return err
	}
	if w.random.IntN(2) == 0 {
		for i := range w.gpus.GPUs[:layoutGPU+1] {
			if err := w.node.Hardware().ForceRemake(i); err != nil {
				return err
			}
		}
		w.truth.lostPartitions(w.random)
		if err := w.truth.disown(w.node); err != nil {
			return err
		}
		w.save()
	}
	w.SetHardware(b.hardware, w.specs)
	w.Recover(ctx)
	if err := w.retry(ctx); err != nil {
		return err
	}
	return w.relayout(ctx)
}

// lostPartitions is what becomes of claims with partitions when those are gone: their pods end, or the kubelet has the claim
// prepared again.
func (c *clusterTruth) lostPartitions(random *rand.Rand) {
	for _, claim := range c.Claims {
		if !slices.ContainsFunc(claim.Devices, func(d string) bool { return strings.Contains(d, "-mig-") }) || claim.Deleted {
			continue
		}
		again := !slices.ContainsFunc(claim.Devices, func(d string) bool { return strings.HasSuffix(d, "!admin") })
		if again && random.IntN(2) == 0 {
			claim.Prepared, claim.Lost = false, true
		} else {
			claim.Ending = true
		}
	}
}
