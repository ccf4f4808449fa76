// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/records"
)

// Hardware is what the engine asks of the node's GPUs.
type Hardware interface {
	// Node is the inventory as published.
	Node() *policy.Node
	// Absent reports whether it is certain that no GPU is at an address any more. One that cannot be read is not absent.
	Absent(pci gpu.PCIAddress) bool
	// VerifyGPU fails if the GPU is lost or another one sits in its place.
	VerifyGPU(ctx context.Context, g *gpu.GPU) error
	// Processes lists the ids of the processes that use a GPU.
	Processes(ctx context.Context, pci gpu.PCIAddress) ([]int, error)
	// AwaitFabric waits, for a bounded time, until a whole GPU is registered with its NVLink fabric.
	AwaitFabric(ctx context.Context, g *gpu.GPU) error
	// ComputeMode is one of gpu.ComputeMode; gpu.ErrNotSupported where a GPU has none, as in MIG mode.
	ComputeMode(ctx context.Context, pci gpu.PCIAddress) (int, error)
	// SetMIG puts a GPU into MIG mode or out of it; gpu.ErrInUse while something holds the GPU, gpu.ErrPartitioned where
	// leaving the mode would destroy partitions.
	SetMIG(ctx context.Context, pci gpu.PCIAddress, enable bool) error
	// CreatePartition makes a partition whole or not at all; gpu.ErrInsufficientResources if its place is taken,
	// gpu.ErrInUse while something holds the GPU, gpu.ErrLeftBehind if something was made that could not be unmade.
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
	// PartitionsID is that of what partitions need of their GPU.
	PartitionsID(device string) string
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
	// sharing is nil where GPUs are not shared, see Options.
	sharing Sharing

	// processes is nil where the driver's list of processes is all there is, see Options.
	processes Processes
	// sessions is nil where sessions of the driver are not told apart, see Options.
	sessions DriverSessions
	// names are the engines of all driver names, this one among them; allocated is what claims of this one's have been
	// allocated, recorded or not, as far as the API server was asked.
	names     *names
	allocated *index

	standing standingPartitions
	layouts  layouts
	// changed is told of changes, see Options.
	changed func()

	// api is asked which claims are leaving; nil to ask nobody, see Options.
	api API

	// recovered tells that Recover has run since the hardware was set.
	recovered atomic.Bool

	backend atomic.Pointer[backend]
	// begun is closed once it is known whether the hardware can be used.
	begun   chan struct{}
	closing sync.Once
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

// Options of an Engine. What is nil or empty is not used.
type Options struct {
	Identity
	// BootID is the content of /proc/sys/kernel/random/boot_id.
	BootID string
	Store  *records.Store
	Locks  *Locks
	Specs  SpecRemover
	// Layouts are kept there; nil where GPUs are not partitioned ahead of claims.
	Layouts *records.LayoutStore
	// Sharing makes GPUs shared; nil where they are not.
	Sharing Sharing
	// Sessions has only what was created in the driver's present session count as the engine's own. Without it, the boot alone
	// counts.
	Sessions DriverSessions
	// Processes are those of the host. Without it, a claim that is gone from the API server is released once the driver lists
	// no process on its GPUs.
	Processes Processes
	// API has Prepare wait, for a while, for devices of claims that the API server no longer has or has deallocated. Without it
	// Prepare refuses them.
	API API
	// OnChange is called, and must not block, when what Occupied returns may have changed by the engine's own doing.
	OnChange func()
	// OnAllocate is called, and must not block or call the engine, when what is allocated to claims may have changed.
	OnAllocate func()
	// OnOtherProcess is called, with locks of GPUs held, when another process may have begun to serve the node by another
	// driver name; it may call Join.
	OnOtherProcess func(ctx context.Context)
}

// New makes an engine without hardware: it can unprepare, and refuses to prepare until SetHardware.
func New(o Options) *Engine {
	e := &Engine{
		id: o.Identity, bootID: o.BootID, store: o.Store, locks: o.Locks, index: newIndex(), allocated: newIndex(), specs: o.Specs,
		sharing: o.Sharing, sessions: o.Sessions, processes: o.Processes, api: o.API, changed: orNothing(o.OnChange), begun: make(chan struct{}),
	}
	e.layouts.store = o.Layouts
	e.index.changed = orNothing(o.OnAllocate)
	e.names = &names{all: []*Engine{e}, find: o.OnOtherProcess}
	e.SetWaiting(errStarting)
	return e
}

func orNothing(f func()) func() {
	if f == nil {
		return func() {}
	}
	return f
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

// SetHardware lets Prepare work.
func (e *Engine) SetHardware(hw Hardware, cdi CDI) {
	e.recovered.Store(false)
	e.backend.Store(&backend{hardware: hw, cdi: cdi})
	e.begin()
}

// SetWaiting makes Prepare fail, under every driver name, with the reason why the hardware cannot be used yet.
func (e *Engine) SetWaiting(reason error) {
	e.names.mu.Lock() // see Lend
	defer e.names.mu.Unlock()
	for _, o := range e.names.all {
		o.backend.Store(&backend{reason: reason})
		if !errors.Is(reason, errStarting) {
			o.begin()
		}
	}
}

// Quiesce waits for calls that began before SetWaiting and may still use the hardware.
func (e *Engine) Quiesce() {
	for _, o := range e.everyone() {
		o.calls.Lock()
		o.calls.Unlock() //nolint:staticcheck // nothing is to be done meanwhile
	}
}

// Prepare makes a claim's devices ready and returns them; none if the claim has no device of this driver. It can be
// repeated: a claim that is prepared already gets the same answer, after the same checks. Where other claims are about to
// give back what it needs, it waits for them.
func (e *Engine) Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]records.Device, error) {
	ctx, cancel := context.WithTimeout(ctx, prepareLimit)
	defer cancel()
	if e.api != nil {
		e.awaitStart(ctx)
	}
	devices, err := e.attempt(ctx, claim)
	if e.api != nil && errors.As(err, new(*blockedError)) {
		return e.prepareAfter(ctx, claim, err)
	}
	return devices, err
}

// attempt prepares a claim, or not, as things are.
func (e *Engine) attempt(ctx context.Context, claim *resourceapi.ResourceClaim) ([]records.Device, error) {
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
	if err != nil {
		return nil, explainMissing(err, claim, b, e.id)
	}
	if len(devices) == 0 {
		return nil, nil
	}
	want := newRecord(claim, devices, e.id, e.bootID, b.cdi)
	e.stamp(want)
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
			if err := e.checkOutlived(ctx, b, have); err != nil {
				return nil, err
			}
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
	if corrupt := e.corruptOfAll(); len(corrupt) > 0 && !e.corrupt.has(claim.UID) && e.index.get(claim.UID) == nil {
		// Nothing but the driver says what claims with corrupt records hold.
		if err := e.checkIdle(ctx, want, false); err != nil {
			return nil, fmt.Errorf("the records of claims %v are corrupt: %w", corrupt, err)
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
		defer e.stopServed(ctx, claim.UID)
		return errors.Join(e.setAside(ctx, claim.UID, corrupt.Err), e.specs.RemoveClaim(claim.UID))
	}
	if err != nil {
		return err
	}
	if have == nil {
		e.stopServed(ctx, claim.UID)
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
		if len(have.Partitions()) > 0 && !errors.Is(err, gpu.ErrUnreadable) && !errors.Is(err, gpu.ErrLost) {
			return errors.Join(err, e.markReleasing(have))
		}
		// On a GPU that cannot be read, nothing of the pod's runs that could be waited for; what is there is destroyed once it
		// can be. And the pod need not wait: its shares are given back once those who share the GPU answer, and until then nothing
		// but shares of the same kind can be had of it.
		klog.FromContext(ctx).Error(err, "Could not give back a share yet; it is tried again soon", "claim", have.Claim)
		return e.markReleasing(have)
	}
	e.undone(have)
	if have.State != records.Prepared {
		defer e.changed() // its devices were occupied
	}
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
			x.GPU == y.GPU && x.UUID == y.UUID && sameShare(x.Share, y.Share) && sameIDs(x, y)
	})
}

// sameIDs compares CDI ids. Release 0.1.0 gave partitions the device of the whole GPU beside their own: such a claim
// keeps what it has.
func sameIDs(x, y records.Device) bool {
	if slices.Equal(x.CDIDeviceIDs, y.CDIDeviceIDs) {
		return true
	}
	return x.Partition != nil && y.Partition != nil && len(x.CDIDeviceIDs) == 2 && len(y.CDIDeviceIDs) == 2 &&
		strings.TrimSuffix(x.CDIDeviceIDs[0], "-mig") == strings.TrimSuffix(y.CDIDeviceIDs[0], "-mig") && x.CDIDeviceIDs[1] == y.CDIDeviceIDs[1]
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
