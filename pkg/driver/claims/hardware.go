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

// gate controls access to the hardware: closed until the driver has answered, and whenever it is released.
type gate struct {
	backend atomic.Pointer[backend]
	// begun is closed once it is known whether the hardware can be used.
	begun chan struct{}
	once  sync.Once
	// calls are those in progress: each may use the hardware until it ends.
	calls sync.RWMutex
	// chosen is the driver name under which the node publishes.
	chosen  string
	holders FindHolders
}

// backend exists only once the driver has answered.
type backend struct {
	hardware Hardware
	cdi      *namedCDI
	holders  FindHolders
	reason   error // why the hardware is not available yet
}

// namedCDI holds the container device specs of each driver name.
type namedCDI struct {
	mu     sync.Mutex
	byName map[string]CDI
}

// of fails if the specs of a former name do not exist yet.
func (c *namedCDI) of(driver string) (CDI, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cdi := c.byName[driver]; cdi != nil {
		return cdi, nil
	}
	return nil, fmt.Errorf("the CDI spec of driver %s is not written yet", driver)
}

// errStarting is the reason until the first SetWaiting.
var errStarting = errors.New("the plugin is starting")

func newGate(chosen string, holders FindHolders) *gate {
	g := &gate{begun: make(chan struct{}), chosen: chosen, holders: holders}
	if holders == nil {
		g.holders = noHolders
	}
	g.backend.Store(&backend{reason: errStarting, cdi: &namedCDI{}})
	return g
}

// SetHardware opens the gate for Prepare; cdi belongs to the chosen driver name.
func (g *gate) SetHardware(hw Hardware, cdi CDI) {
	g.backend.Store(&backend{hardware: hw, cdi: &namedCDI{byName: map[string]CDI{g.chosen: cdi}}, holders: g.holders})
	g.begin()
}

// SetWaiting makes Prepare fail with the reason why the hardware is not available.
func (g *gate) SetWaiting(reason error) {
	g.backend.Store(&backend{reason: reason, cdi: &namedCDI{}})
	g.begin()
}

// Quiesce waits for calls that began before SetWaiting and may still use the hardware.
func (g *gate) Quiesce() {
	g.calls.Lock()
	g.calls.Unlock() //nolint:staticcheck // there is nothing to do while holding it
}

// LacksCDI returns what lets claims of a former driver name be prepared with the hardware of the moment; nil if they can be already,
// or there is none.
func (g *gate) LacksCDI(driver string) (set func(CDI)) {
	b := g.backend.Load()
	if _, err := b.cdi.of(driver); b.hardware == nil || err == nil {
		return nil
	}
	return func(cdi CDI) {
		b.cdi.mu.Lock()
		defer b.cdi.mu.Unlock()
		b.cdi.byName[driver] = cdi
	}
}

// DropCDI undoes LacksCDI, when the specs of a former driver name are removed.
func (g *gate) DropCDI(driver string) {
	c := g.backend.Load().cdi
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byName, driver)
}

// Ready reports whether the hardware can be used.
func (g *gate) Ready() bool { return g.backend.Load().hardware != nil }

// begin ends the wait of awaitStart.
func (g *gate) begin() { g.once.Do(func() { close(g.begun) }) }

// awaitStart waits, for a limited time, until it is known whether the hardware can be used. In a rolling update the kubelet calls
// the new plugin as soon as it is registered, before it has read the hardware, and retries a refused pod only after
// several seconds.
func (g *gate) awaitStart(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case <-g.begun:
	case <-ctx.Done():
	}
}

// locate finds the GPU of a recorded device. It returns nil if the GPU is gone, with everything on it: at its address the machine has
// no GPU any more, or another one. A GPU that may be present but cannot be read is gpu.ErrUnreadable:
// its partitions may still exist, so they stay on record.
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

// absent reports whether a device's GPU is certainly gone.
func absent(b *backend, device string) bool {
	pci, err := gpu.ParseDeviceName(device)
	return err == nil && b.hardware.Absent(pci)
}

// takenOut reports whether an error says that a GPU was removed from the node, with its partitions and processes. A GPU
// that is lost or does not answer was not removed.
func takenOut(err error) bool {
	return errors.Is(err, gpu.ErrAbsent) || errors.Is(err, gpu.ErrReplaced)
}

// explainMissing extends a planning error if the GPU of one of the claim's devices is present but cannot be read: another pod on this
// node would not help then, but waiting may.
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
		return fmt.Errorf("request %q: device %s: the GPU at %s: %w: claims keep their devices on it, and preparation is retried",
			r.Request, r.Device, pci, gpu.ErrUnreadable)
	}
	return err
}
