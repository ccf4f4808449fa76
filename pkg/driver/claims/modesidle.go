// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// yielding are programs that may keep a GPU open, by their names in /proc/PID/comm, which has 15 bytes:
// nvidia-persistenced closes a GPU when its persistence mode is switched off (NVIDIA/NVSentinel#1692), and on NVSwitch systems
// with A100 "Fabric Manager is required to facilitate reset" (nvidia-smi's manual, --gpu-reset).
var yielding = []string{"nvidia-persiste", "nv-fabricmanage"}

const (
	// listTimeout bounds listing the claims of all namespaces, page by page. Nobody waits for a GPU whose devices are withdrawn,
	// but for a plugin that ends, which aborts it.
	listTimeout = 2 * time.Minute
	// mostOvertaken bounds the number of overtaken claims to report, which is the maximum number of shares of a GPU.
	mostOvertaken = 100
)

// checkIdle fails unless no claim or process uses a GPU and it has no partitions, but those that end with its reset; the caller holds its
// lock. Partitions of ended claims, and those that Cleave created ahead of claims, are destroyed, as far as they have to go.
func (m *Modes) checkIdle(ctx context.Context, b *backend, g *gpu.GPU, ends *ending) error {
	device := g.PCI.DeviceName()
	var names []string
	chosen := m.ledger.id.Driver
	for _, r := range Under(chosen, m.ledger.index.on(device, "").all) {
		if !ends.has(r) {
			names = append(names, r.Claim.String())
		}
	}
	for _, c := range m.ledger.conflicts(device, chosen) {
		names = append(names, c.String())
	}
	if len(names) > 0 {
		return fmt.Errorf("it is allocated to claims %s: %w", strings.Join(slices.Compact(names), ", "), gpu.ErrInUse)
	}
	if corrupt := m.ledger.corruptOn(device); len(corrupt) > 0 {
		return fmt.Errorf("claims %v have corrupt records and may be using the GPU: %w", corrupt, gpu.ErrInUse)
	}
	if err := m.checkUnprepared(ctx, device, ends.reset); err != nil {
		return err
	}
	return m.checkUnused(ctx, b, g, ends)
}

// checkUnused is checkIdle for partitions and processes. Until its reset a failed GPU may list neither. Then the processes that have it
// open are all there are, and each of them must be seen.
func (m *Modes) checkUnused(ctx context.Context, b *backend, g *gpu.GPU, ends *ending) error {
	partsErr := ends.check(ctx, b, g)
	if partsErr != nil && !ends.awaits(partsErr) && !errors.Is(partsErr, gpu.ErrInUse) {
		return partsErr
	}
	pids, listErr := b.hardware.Processes(ctx, g.PCI)
	holders, err := m.gate.holders(ctx, g, nil)
	switch listed := listErr == nil || errors.Is(listErr, gpu.ErrNotSupported); {
	case !listed && !awaitsReset(listErr):
		return errors.Join(partsErr, listErr)
	case err != nil && (!listed || ends.awaits(partsErr)):
		return fmt.Errorf("%w; which processes have it open cannot be determined: %w", errors.Join(partsErr, listErr), err)
	case errors.Is(partsErr, gpu.ErrInUse):
		if err == nil && len(pids) == 0 && m.openInPods(ctx, b, g, holders) {
			return fmt.Errorf("%w: %w", gpu.ErrHeldByPods, partsErr)
		}
		return partsErr
	case len(pids) > 0:
		return fmt.Errorf("%w by processes %v%s", gpu.ErrInUse, pids, describeHolders(holders))
	case err != nil: // the driver then reports whether others use it
		klog.FromContext(ctx).V(4).Info("Cannot see all processes that have a GPU open", "gpu", g.PCI.DeviceName(), "reason", err.Error())
	}
	if holders = unyielding(holders); len(holders) > 0 {
		why := gpu.ErrInUse
		if err == nil && m.inPods(ctx, holders) {
			why = gpu.ErrHeldByPods
		}
		return fmt.Errorf("%w%s", why, describeHolders(holders))
	}
	return nil
}

// unyielding removes the programs that may keep a GPU open, by their names, which is not certain: see heldBy.
func unyielding(holders []Holder) []Holder {
	return slices.DeleteFunc(holders, func(h Holder) bool { return slices.Contains(yielding, h.Name) })
}

// openInPods reports whether those that have a GPU open, or its partitions, all run in pods. DCGM may keep partitions open that it no
// longer watches, and of these the driver lists no process.
func (o *ModeOptions) openInPods(ctx context.Context, b *backend, g *gpu.GPU, holders []Holder) bool {
	parts, err := b.hardware.Partitions(ctx, g)
	for i := range parts {
		of, partErr := b.holders(ctx, g, &parts[i])
		holders, err = append(holders, of...), errors.Join(err, partErr)
	}
	holders = unyielding(holders)
	return err == nil && len(holders) > 0 && o.inPods(ctx, holders)
}

// inPods reports whether processes all run in pods: then these can be stopped by a label of the Node.
func (o *ModeOptions) inPods(ctx context.Context, holders []Holder) bool {
	var pids []int
	for _, h := range holders {
		pids = append(pids, h.PID)
	}
	return o.InPods != nil && o.InPods(ctx, pids)
}

// checkUnprepared fails if a claim is allocated a device of a GPU but not prepared yet, as only the API server knows, or in vain, see
// unprepared. reset is set for a reset on request.
func (m *Modes) checkUnprepared(ctx context.Context, device string, reset bool) error {
	found, err := m.unprepared(ctx, device, 1, reset)
	if err != nil {
		return fmt.Errorf("list the claims that may be allocated it: %w", err)
	}
	if len(found) == 0 {
		return nil
	}
	state := "which is not prepared yet"
	if m.ledger.index.get(found[0].UID) != nil {
		state = "which has ended and is not deallocated yet"
	}
	return fmt.Errorf("it is allocated to claim %s, %s: %w", found[0], state, gpu.ErrInUse)
}

// unprepared lists claims of the API server, at most a given number, that are allocated a device of a GPU and have no record. One that has
// ended and is still allocated would lose its device to a change of the mode, but not to a reset.
func (m *Modes) unprepared(ctx context.Context, device string, most int, reset bool) (found []records.Claim, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	err = m.Claims(ctx, func(claim *resourceapi.ResourceClaim) bool {
		r, have := m.ledger.Names.allocation(claim, nil), m.ledger.index.get(claim.UID)
		if r != nil && slices.Contains(r.GPUs(), device) && (have == nil || !reset && have.EndsBeforeChange(device)) {
			found = append(found, r.Claim)
		}
		return len(found) < most
	})
	return found, err
}

// reportOvertaken reports the claims whose device disappeared with the mode: the scheduler decided too late for the earlier
// checks to see them.
func (m *Modes) reportOvertaken(ctx context.Context, g *gpu.GPU, enabled bool) {
	device := g.PCI.DeviceName()
	claims, err := m.unprepared(ctx, device, mostOvertaken, false)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot determine whether claims were allocated a GPU while its MIG mode changed", "gpu", device)
		return
	}
	if len(claims) == 0 {
		return
	}
	klog.FromContext(ctx).Info("Claims were allocated a GPU while its MIG mode changed; they cannot be prepared", "gpu", device,
		"enabled", enabled, "claims", claims)
	if m.Overtaken != nil {
		m.Overtaken(g, enabled, claims)
	}
}
