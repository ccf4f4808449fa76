package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/records"
)

// Hardware is what the engine asks of the node's GPUs.
type Hardware interface {
	// Node is the inventory as published.
	Node() *gpu.Node
	// VerifyGPU fails if the GPU is lost or another one sits in its place.
	VerifyGPU(ctx context.Context, g *gpu.GPU) error
	// Processes lists the ids of the processes that use a GPU.
	Processes(ctx context.Context, pci gpu.PCIAddress) ([]int, error)
	// SetMIG puts a GPU into MIG mode or out of it; gpu.ErrInUse while something holds the GPU.
	SetMIG(ctx context.Context, pci gpu.PCIAddress, enable bool) error
	// CreatePartition makes a partition whole or not at all; gpu.ErrInsufficientResources if its place is taken,
	// gpu.ErrLeftBehind if something was made that could not be unmade.
	CreatePartition(ctx context.Context, shape gpu.Shape) (gpu.Partition, error)
	// DestroyPartition unmakes one; one that is gone is no error; gpu.ErrInUse while a process is in it.
	DestroyPartition(ctx context.Context, pci gpu.PCIAddress, part gpu.Partition) error
	// Partitions lists the partitions of a GPU, half made ones too.
	Partitions(ctx context.Context, g *gpu.GPU) ([]gpu.Partition, error)
	// PartitionAt returns the one with the profile and placement of another, or nil.
	PartitionAt(ctx context.Context, pci gpu.PCIAddress, like gpu.Partition) (*gpu.Partition, error)
}

// CDI is what the engine asks of the container device specs once the driver is there.
type CDI interface {
	// DeviceID is the fully qualified CDI name of a whole GPU.
	DeviceID(device string) string
	// ClaimID is that of what a partition or share of a claim has beside its GPU.
	ClaimID(uid types.UID, d *records.Device) string
	// Ensure fails unless a container runtime can resolve the ids of whole GPUs now.
	Ensure(ctx context.Context, ids []string) error
	// WriteClaim writes the spec of a claim's partitions and shares, HasClaim tells whether it is there.
	WriteClaim(ctx context.Context, uid types.UID, devices []*records.Device) error
	HasClaim(uid types.UID) bool
}

// SpecRemover removes the spec of a claim's partitions; it needs no driver.
type SpecRemover interface {
	RemoveClaim(uid types.UID) error
}

// Engine prepares and unprepares claims. All methods are safe for concurrent use.
type Engine struct {
	id     Identity
	bootID string
	store  *records.Store
	locks  *Locks
	index  *index
	specs  SpecRemover
	// sharing is nil where GPUs are not shared, see Share.
	sharing Sharing

	standing standingPartitions
	layouts  layouts
	// changed is told of changes, see OnChange.
	changed func()

	// recovered tells that Recover has run since the hardware was set.
	recovered atomic.Bool

	backend atomic.Pointer[backend]
	// calls are the kubelet's that run now: each may use the hardware until it ends.
	calls   sync.RWMutex
	corrupt corruptRecords
}

// backend is what exists only once the driver has answered.
type backend struct {
	hardware Hardware
	cdi      CDI
	reason   error // why there is none yet
}

// errStarting is the reason until SetWaiting gives a better one.
var errStarting = errors.New("the plugin is starting")

// New makes an engine without hardware: it can unprepare, and refuses to prepare until SetHardware.
// bootID is the content of /proc/sys/kernel/random/boot_id.
func New(id Identity, bootID string, store *records.Store, locks *Locks, specs SpecRemover) *Engine {
	e := &Engine{id: id, bootID: bootID, store: store, locks: locks, index: newIndex(), specs: specs, changed: func() {}}
	e.SetWaiting(errStarting)
	return e
}

// Records are what all claims hold, in order of claim UID; they must not be changed.
func (e *Engine) Records() []*records.Record { return e.index.claims() }

// Claim is the claim of a UID; one that holds nothing has no name.
func (e *Engine) Claim(uid types.UID) records.Claim {
	if r := e.index.get(uid); r != nil {
		return r.Claim
	}
	return records.Claim{UID: uid}
}

// Share lets the engine hand out shares of GPUs. Call it before the first Prepare.
func (e *Engine) Share(s Sharing) { e.sharing = s }

// OnChange has a function called, which must not block, when what Occupied says may have changed by the engine's own
// doing. Call it before the first Prepare.
func (e *Engine) OnChange(changed func()) { e.changed = changed }

// OnHeld has a function called, which must not block or call the engine, when what claims hold may have changed. Call it
// before the first Prepare.
func (e *Engine) OnHeld(changed func()) { e.index.changed = changed }

// SetHardware lets Prepare work.
func (e *Engine) SetHardware(hw Hardware, cdi CDI) {
	e.recovered.Store(false)
	e.backend.Store(&backend{hardware: hw, cdi: cdi})
}

// SetWaiting makes Prepare fail with the reason why the hardware cannot be used yet.
func (e *Engine) SetWaiting(reason error) {
	e.backend.Store(&backend{reason: reason})
}

// Quiesce waits for calls that began before SetWaiting and may still use the hardware.
func (e *Engine) Quiesce() {
	e.calls.Lock()
	defer e.calls.Unlock()
}

// Prepare makes a claim's devices ready and returns them; none if the claim has no device of this driver. It can be
// repeated: a claim that is prepared already gets the same answer, after the same checks.
func (e *Engine) Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]records.Device, error) {
	e.calls.RLock()
	defer e.calls.RUnlock()
	return e.prepare(ctx, claim, false)
}

// prepare is Prepare; adopt lets the claim take over a partition that lies exactly where its own is to be and that no
// record names, for a claim whose record was lost.
func (e *Engine) prepare(ctx context.Context, claim *resourceapi.ResourceClaim, adopt bool) ([]records.Device, error) {
	b := e.backend.Load()
	if b.hardware == nil {
		return nil, fmt.Errorf("the node's GPUs cannot be used yet: %w", b.reason)
	}
	devices, err := plan(claim, b.hardware.Node(), e.id)
	if err != nil || len(devices) == 0 {
		return nil, err
	}
	want := newRecord(claim, devices, e.id, e.bootID, b.cdi)
	held, err := e.lockFor(ctx, claim.UID, gpuNames(devices))
	if err != nil {
		return nil, err
	}
	defer held.Release()
	if err := e.checkFree(b, want, adopt); err != nil {
		return nil, err
	}
	if err := e.checkShares(want, devices); err != nil {
		return nil, err
	}
	if err := verify(ctx, b, devices); err != nil {
		return nil, err
	}
	if have := e.index.get(claim.UID); have != nil {
		if sameDevices(have, want) {
			whole, err := e.intact(ctx, b, have)
			if err != nil {
				return nil, err
			}
			if whole {
				klog.FromContext(ctx).V(4).Info("Claim is prepared already", "claim", want.Claim)
				return have.Devices, nil
			}
		}
		// An earlier allocation of the same claim, or a preparation that was cut short.
		if err := e.undo(ctx, b, have); err != nil {
			return nil, err
		}
		e.undone(have)
	}
	if e.corrupt.any() && !e.corrupt.has(claim.UID) && e.index.get(claim.UID) == nil {
		// Nothing but the driver says what claims with corrupt records hold.
		if err := e.checkIdle(ctx, want, false); err != nil {
			return nil, fmt.Errorf("the records of claims %v are corrupt: %w", e.corrupt.all(), err)
		}
	}
	if err := e.apply(ctx, b, devices, want, adopt); err != nil {
		return nil, err
	}
	e.corrupt.drop(claim.UID)
	return want.Devices, nil
}

// Unprepare gives back all that a claim holds. It needs no GPU driver: without one, partitions are destroyed once it is
// back. A claim that holds nothing is no error.
func (e *Engine) Unprepare(ctx context.Context, claim records.Claim) error {
	e.calls.RLock()
	defer e.calls.RUnlock()
	have, err := e.find(claim.UID)
	defer e.corrupt.drop(claim.UID) // not to be made again
	if corrupt := (*records.CorruptError)(nil); errors.As(err, &corrupt) {
		return errors.Join(e.setAside(ctx, corrupt), e.specs.RemoveClaim(claim.UID))
	}
	if err != nil {
		return err
	}
	if have == nil {
		return e.specs.RemoveClaim(claim.UID) // of a claim whose record was set aside
	}
	held, err := e.lockFor(ctx, claim.UID, have.GPUs())
	if err != nil {
		return err
	}
	defer held.Release()
	return e.release(ctx, claim.UID)
}

// release undoes what a claim's record lists and removes it; the caller holds the locks of its GPUs.
func (e *Engine) release(ctx context.Context, uid types.UID) error {
	have := e.index.get(uid)
	if have == nil {
		return nil
	}
	b := e.backend.Load()
	if len(have.InSpec()) == 0 {
		return e.forget(uid)
	}
	if b.hardware == nil && len(have.Partitions()) > 0 {
		return e.markReleasing(have)
	}
	if err := e.undo(ctx, b, have); err != nil {
		if len(have.Partitions()) > 0 {
			return errors.Join(err, e.markReleasing(have))
		}
		// The pod need not wait: its shares are given back once those who share the GPU answer, and until then nothing
		// but shares of the same kind can be had of it.
		klog.FromContext(ctx).Error(err, "Could not give back a share yet; it is tried again soon", "claim", have.Claim)
		return e.markReleasing(have)
	}
	e.undone(have)
	return e.forget(uid)
}

// undone remembers, should the record itself stay, that what it lists is not there any more: no other claim may count on
// it, such as on an interval that is set.
func (e *Engine) undone(r *records.Record) {
	if r.State == records.Prepared && len(r.InSpec()) > 0 {
		left := r.Clone()
		left.State = records.Releasing
		e.index.set(left)
	}
}

// forget removes a claim's spec and record; the caller holds the locks of its GPUs.
func (e *Engine) forget(uid types.UID) error {
	if err := e.specs.RemoveClaim(uid); err != nil {
		return err
	}
	if err := e.store.Remove(uid); err != nil {
		return err
	}
	e.index.remove(uid)
	return nil
}

// find returns the record of a claim from memory or, if another process prepared it, from disk; nil if there is none.
func (e *Engine) find(uid types.UID) (*records.Record, error) {
	if r := e.index.get(uid); r != nil {
		return r, nil
	}
	r, err := e.store.Read(uid)
	if r != nil && r.BootID != e.bootID {
		return nil, nil //nolint:nilnil // what it stood for has not outlived the reboot
	}
	return r, err
}

// findEarlier is find for a claim that may be none: who looks at GPUs for no claim gives no UID.
func (e *Engine) findEarlier(uid types.UID) (*records.Record, error) {
	if uid == "" {
		return nil, nil //nolint:nilnil // no claim has no record
	}
	return e.find(uid)
}

// lockFor locks the named GPUs and those that the claim holds by an earlier allocation, and brings the index up to
// date for them. A claim keeps its UID when it is deallocated and allocated anew.
func (e *Engine) lockFor(ctx context.Context, uid types.UID, names []string) (*Held, error) {
	for {
		all := names
		before, err := e.findEarlier(uid)
		if corrupt := (*records.CorruptError)(nil); err != nil && !errors.As(err, &corrupt) {
			return nil, err
		}
		if before != nil {
			all = append(slices.Clone(names), before.GPUs()...)
		}
		held, err := e.locks.Acquire(ctx, all)
		if err != nil {
			return nil, e.explainWrite(err)
		}
		if held.Foreign {
			if err := e.resync(ctx, uid, all); err != nil {
				held.Release()
				return nil, err
			}
			held.Seen()
		}
		if after := e.index.get(uid); after == nil || covers(all, after.GPUs()) {
			return held, nil
		}
		held.Release() // the claim got other GPUs meanwhile: lock those too
	}
}

// covers tells whether every one of names is in all.
func covers(all, names []string) bool {
	for _, n := range names {
		if !slices.Contains(all, n) {
			return false
		}
	}
	return true
}

// resync brings the index up to date with the records on disk for the named GPUs, whose locks the caller holds:
// another process may have changed them. Records of other GPUs may be changing right now and are left alone.
func (e *Engine) resync(ctx context.Context, self types.UID, names []string) error {
	uids, err := e.store.UIDs()
	if err != nil {
		return err
	}
	e.layouts.reload(ctx, e.bootID, names)
	known := e.index.on(names)
	for _, uid := range uids {
		r, err := e.store.Read(uid)
		if corrupt := (*records.CorruptError)(nil); errors.As(err, &corrupt) {
			klog.FromContext(ctx).Error(err, "Passing over a corrupt claim record")
			delete(known, uid) // what memory knows of it is all there is
			continue
		}
		if err != nil {
			return err
		}
		if r == nil || r.BootID != e.bootID {
			continue
		}
		if uid == self || slices.ContainsFunc(r.GPUs(), func(n string) bool { return slices.Contains(names, n) }) {
			e.index.set(r)
			delete(known, uid)
		}
	}
	for _, r := range known { // unprepared by another process, or moved to other GPUs, whose locks are foreign to us too
		e.index.removeIf(r)
	}
	return nil
}

// checkFree fails if another claim, or somebody else's partition, is where this claim's devices are to be.
func (e *Engine) checkFree(b *backend, want *records.Record, adopt bool) error {
	for i := range want.Devices {
		d := &want.Devices[i]
		if d.AdminAccess {
			continue
		}
		if other := e.index.holder(d, want.Claim.UID); other != nil {
			return fmt.Errorf("request %q: device %s of GPU %s is held by claim %s: it is exclusive, and free once that claim's pods have ended and it is unprepared",
				d.Request, d.Device, d.UUID, other.Claim)
		}
		if other := e.occupant(b.hardware.Node().Find(d.GPU), d); other != nil && !adopt && !has(e.index.get(want.Claim.UID), d.GPU, other.Place()) {
			return fmt.Errorf("request %q: device %s of GPU %s is occupied by %s", d.Request, d.Device, d.UUID, e.describe(d.GPU, other))
		}
	}
	return nil
}

// has tells whether a claim's record has the partition at a place: it keeps it when the policy has it no more.
func has(r *records.Record, gpuDevice string, at gpu.Place) bool {
	return r != nil && slices.ContainsFunc(r.Partitions(), func(d *records.Device) bool { return d.GPU == gpuDevice && d.Partition.Place() == at })
}

// verify makes sure that the GPUs are there and that a container runtime can inject them.
func verify(ctx context.Context, b *backend, devices []planned) error {
	seen := map[*gpu.GPU]bool{}
	var ids []string
	for _, d := range devices {
		if seen[d.shape.GPU] {
			continue
		}
		seen[d.shape.GPU] = true
		if err := b.hardware.VerifyGPU(ctx, d.shape.GPU); err != nil {
			return fmt.Errorf("request %q: %w", d.request, err)
		}
		ids = append(ids, b.cdi.DeviceID(d.shape.GPU.PCI.DeviceName()))
	}
	return b.cdi.Ensure(ctx, ids)
}

// sameDevices tells whether two records hand out the same devices in the same boot.
func sameDevices(a, b *records.Record) bool {
	return a.BootID == b.BootID && a.State == b.State && slices.EqualFunc(a.Devices, b.Devices, func(x, y records.Device) bool {
		return x.Request == y.Request && x.Pool == y.Pool && x.Device == y.Device && x.AdminAccess == y.AdminAccess &&
			x.GPU == y.GPU && x.UUID == y.UUID && sameShare(x.Share, y.Share) && slices.Equal(x.CDIDeviceIDs, y.CDIDeviceIDs)
	})
}

// sameShare tells whether two shares are the same but for where their server is.
func sameShare(a, b *records.Share) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, y := *a, *b
	if x.MPS != nil && y.MPS != nil {
		m, n := *x.MPS, *y.MPS
		m.PipeDir, m.ShmDir = n.PipeDir, n.ShmDir
		if m != n {
			return false
		}
		x.MPS, y.MPS = nil, nil
	}
	return x == y
}

// explainWrite adds what to do to the one write error that an admin can mend.
func (e *Engine) explainWrite(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: free space on the file system of %s; the claim is tried again by itself", err, e.store.Dir())
	}
	return err
}
