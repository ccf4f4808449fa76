// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// gate is the way to the hardware under one driver name: closed until the driver has answered, and whenever it is released.
type gate struct {
	backend atomic.Pointer[backend]
	// begun is closed once it is known whether the hardware can be used.
	begun chan struct{}
	once  sync.Once
	// calls are those that run now: each may use the hardware until it ends.
	calls sync.RWMutex
	names *names

	holders FindHolders
}

// backend is what exists only once the driver has answered.
type backend struct {
	hardware Hardware
	cdi      CDI
	holders  FindHolders
	reason   error // why there is none yet
}

// errStarting is the reason until SetWaiting gives a better one.
var errStarting = errors.New("the plugin is starting")

func newGate(n *names, holders FindHolders) *gate {
	g := &gate{begun: make(chan struct{}), names: n, holders: holders}
	if holders == nil {
		g.holders = noHolders
	}
	g.backend.Store(&backend{reason: errStarting})
	return g
}

// SetHardware lets Prepare work.
func (g *gate) SetHardware(hw Hardware, cdi CDI) {
	g.backend.Store(&backend{hardware: hw, cdi: cdi, holders: g.holders})
	g.begin()
}

// SetWaiting makes Prepare fail, under every driver name, with the reason why the hardware cannot be used yet.
func (g *gate) SetWaiting(reason error) {
	g.names.mu.Lock() // see Lend
	defer g.names.mu.Unlock()
	for _, o := range g.names.all {
		o.backend.Store(&backend{reason: reason})
		o.begin()
	}
}

// Quiesce waits for calls that began before SetWaiting and may still use the hardware.
func (g *gate) Quiesce() {
	for _, o := range g.names.everyone() {
		o.calls.Lock()
		o.calls.Unlock() //nolint:staticcheck // nothing is to be done meanwhile
	}
}

// Lend gives another driver name the hardware, as long as this one has it: both lose it by SetWaiting. It reports whether
// the other has it.
func (g *gate) Lend(other *Preparer, cdi CDI) bool {
	g.names.mu.Lock()
	defer g.names.mu.Unlock()
	b := g.backend.Load()
	if b.hardware != nil {
		other.SetHardware(b.hardware, cdi)
	}
	return b.hardware != nil
}

// Ready reports whether the hardware can be used.
func (g *gate) Ready() bool { return g.backend.Load().hardware != nil }

// begin ends the wait for the start.
func (g *gate) begin() { g.once.Do(func() { close(g.begun) }) }

// awaitStart waits, for a while, until it is known whether the hardware can be used. In a rolling update the kubelet asks the
// new plugin as soon as that is registered, which takes less time than reading the hardware, and tries a refused pod again
// only after seconds.
func (g *gate) awaitStart(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case <-g.begun:
	case <-ctx.Done():
	}
}

// locate finds the GPU of a device on record. It returns nil if that GPU is gone, and all that was on it: the machine has
// none at its address any more, or another one. A GPU that is there, or may be, and cannot be read is gpu.ErrUnreadable:
// what was on it may still be, and stays on record.
func locate(b *backend, d *records.Device) (*gpu.GPU, error) {
	g := b.hardware.Node().Find(d.GPU)
	switch {
	case g != nil && g.UUID == d.UUID:
		return g, nil
	case g != nil || absent(b, d.GPU):
		return nil, nil //nolint:nilnil // a GPU that is gone is an ordinary answer
	default:
		return nil, fmt.Errorf("GPU %s (%s): %w", d.GPU, d.UUID, gpu.ErrUnreadable)
	}
}

// absent reports whether it is certain that the GPU of a device is gone.
func absent(b *backend, device string) bool {
	pci, err := gpu.ParseDeviceName(device)
	return err == nil && b.hardware.Absent(pci)
}

// takenOut reports whether an error says that a GPU is no longer in the node, and its partitions and processes with it. One
// that is lost or does not answer is not taken out.
func takenOut(err error) bool {
	return errors.Is(err, gpu.ErrAbsent) || errors.Is(err, gpu.ErrReplaced)
}

// explainMissing adds to an error that a claim cannot be planned whether the GPU of one of its devices is there and cannot
// be read: then another pod on this node would not help, and waiting may.
func explainMissing(err error, claim *resourceapi.ResourceClaim, b *backend, id Identity) error {
	if claim.Status.Allocation == nil {
		return err
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		pci, nameErr := gpu.ParseDeviceName(r.Device)
		if r.Driver != id.Driver || r.Pool != id.Pool || nameErr != nil || b.hardware.Node().Find(pci.DeviceName()) != nil ||
			b.hardware.Absent(pci) {
			continue
		}
		return fmt.Errorf("request %q: device %s: the GPU at %s: %w: what claims have on it stays on record, and is retried",
			r.Request, r.Device, pci, gpu.ErrUnreadable)
	}
	return err
}
