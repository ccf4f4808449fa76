// SPDX-License-Identifier: Apache-2.0

package claimstatus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourceac "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// A failed write is retried after retryFirst, and then with increasing delays.
const (
	retryFirst = time.Second
	retryMost  = 5 * time.Minute
	// callTimeout bounds one write.
	callTimeout = 10 * time.Second
	// delay lets pods start first, and saves the writes of claims that are unprepared soon after.
	delay = 250 * time.Millisecond
)

// maxManager is the limit of a field manager's name (apimachinery, FieldManagerMaxLength).
const maxManager = 128

// Options of a Writer.
type Options struct {
	Client kubernetes.Interface
	// Driver and Node name the devices: those of the driver's pool of the node's name.
	Driver, Node string
	// Notes record the claims whose status may list devices, so that it is removed even after a kill.
	Notes *records.StatusNotes
	// Record returns a claim's record; nil for none. Records returns all of them. Inventory is nil while the driver is unavailable.
	// They may be called at any time.
	Record    func(types.UID) *records.Record
	Records   func() []*records.Record
	Inventory func() *gpu.Node
	// Seen is called with each claim that was read or written.
	Seen func(*resourceapi.ResourceClaim)
	// Refused is called when the API server permanently rejects the status of a claim; it is not retried until something changes.
	Refused func(claim records.Claim, err error)
}

// Writer writes the status of claims concurrently with Prepare and Unprepare, which do not wait for it, one claim at a time.
type Writer struct {
	Options
	// manager owns the written fields. It is specific to the node, so that it never removes another node's data.
	manager string
	queue   workqueue.TypedRateLimitingInterface[records.Claim]
	now     func() time.Time

	mu sync.Mutex
	// written is the last written data of each claim; unread are claims whose data an earlier process may have written.
	written map[types.UID]string
	unread  map[types.UID]bool
}

// NewWriter returns a Writer that writes nothing before Run.
func NewWriter(o Options) *Writer {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[records.Claim](retryFirst, retryMost)
	return &Writer{Options: o, manager: managerOf(o.Driver, o.Node), now: time.Now,
		queue: workqueue.NewTypedRateLimitingQueue(limiter), written: map[types.UID]string{}, unread: map[types.UID]bool{}}
}

// managerOf is the field manager of a driver's plugin on a node.
func managerOf(driver, node string) string {
	if name := driver + "/" + node; len(name) <= maxManager {
		return name
	}
	sum := sha256.Sum256([]byte(node))
	return driver + "/" + hex.EncodeToString(sum[:16])
}

// Changed notes that a claim was prepared, possibly again, or that it was unprepared, or an attempt: its record shows whether it has
// devices. It does not block. A nil Writer ignores it.
func (w *Writer) Changed(claim records.Claim) {
	if w != nil {
		w.queue.AddAfter(claim, delay)
	}
}

// Restore corrects, after a start, the status of claims that were prepared before.
func (w *Writer) Restore(all []*records.Record) {
	for _, r := range all {
		w.mu.Lock()
		w.unread[r.Claim.UID] = true
		w.mu.Unlock()
		w.queue.Add(r.Claim)
	}
}

// Sweep removes the status of claims that are no longer prepared: an earlier process may have been killed before it could, and a
// claim can be released without Unprepare. It writes that of claims prepared without Prepare, as after a corrupt record. A nil
// Writer ignores it.
func (w *Writer) Sweep(ctx context.Context) {
	if w == nil {
		return
	}
	notes, corrupt, err := w.Notes.List()
	if err = errors.Join(append(corrupt, err)...); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot read which claims have a written status; some may keep it until they are deallocated")
	}
	for _, n := range notes {
		if !prepared(w.Record(n.Claim.UID)) {
			w.queue.Add(n.Claim)
		}
	}
	if w.Inventory() == nil {
		return // less is known about their devices than an earlier process wrote
	}
	for _, r := range w.Records() {
		w.mu.Lock()
		_, known := w.written[r.Claim.UID]
		missing := prepared(r) && !known
		if missing {
			w.unread[r.Claim.UID] = true // after a start this may come before Restore
		}
		w.mu.Unlock()
		if missing {
			w.queue.Add(r.Claim)
		}
	}
}

// Run writes until ctx ends.
func (w *Writer) Run(ctx context.Context) {
	stop := context.AfterFunc(ctx, w.queue.ShutDown)
	defer stop()
	w.Sweep(ctx)
	for {
		claim, shutdown := w.queue.Get()
		if shutdown {
			return
		}
		err := w.write(ctx, claim)
		switch {
		case err == nil:
			w.queue.Forget(claim)
		case ctx.Err() == nil:
			klog.FromContext(ctx).Info("Writing the status of a claim failed; retrying", "claim", claim, "err", err)
			w.queue.AddRateLimited(claim)
		}
		w.queue.Done(claim)
	}
}

func prepared(r *records.Record) bool { return r != nil && r.State == records.Prepared }

// write writes or removes the status of a claim according to its record.
func (w *Writer) write(ctx context.Context, claim records.Claim) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	record := w.Record(claim.UID)
	if !prepared(record) {
		return w.remove(ctx, claim)
	}
	devices, data, err := w.devices(record)
	if err != nil {
		return err
	}
	if same, err := w.has(ctx, claim, data); same || err != nil {
		return err
	}
	if err := w.Notes.Write(&records.StatusNote{Format: records.StatusFormat, Claim: claim}); err != nil { // before the status
		return err
	}
	if err := w.apply(ctx, claim, devices); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written[claim.UID] = data
	return nil
}

// remove removes the status of a claim, if there may be one.
func (w *Writer) remove(ctx context.Context, claim records.Claim) error {
	note, err := w.Notes.Read(claim.UID)
	corrupt := (*store.CorruptError)(nil)
	if err != nil && !errors.As(err, &corrupt) {
		return err
	}
	if note != nil || corrupt != nil {
		if err := w.apply(ctx, claim, nil); err != nil {
			return err
		}
		if err := w.Notes.Remove(claim.UID); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.written, claim.UID)
	delete(w.unread, claim.UID)
	return nil
}

// apply replaces this node's previous data. A claim that is gone, replaced or deallocated is no error, as its status is gone, too.
// Neither is a status that the API server rejects permanently, which is reported.
func (w *Writer) apply(ctx context.Context, claim records.Claim, devices []*resourceac.AllocatedDeviceStatusApplyConfiguration) error {
	config := resourceac.ResourceClaim(claim.Name, claim.Namespace).WithUID(claim.UID).
		WithStatus(resourceac.ResourceClaimStatus().WithDevices(devices...))
	applied, err := w.Client.ResourceV1().ResourceClaims(claim.Namespace).ApplyStatus(ctx, config,
		metav1.ApplyOptions{FieldManager: w.manager, Force: true})
	switch {
	case err == nil:
		w.Seen(applied)
		klog.FromContext(ctx).V(4).Info("Wrote the status of a claim", "claim", claim, "devices", len(devices))
		return nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // another UID
		return nil
	}
	err = fmt.Errorf("apply the status of claim %s: %w", claim, err)
	if !apierrors.IsInvalid(err) {
		return err
	}
	allocated, readErr := w.allocated(ctx, claim)
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	if allocated {
		klog.FromContext(ctx).Error(err, "The API server refuses the status of a claim; it is not written until the claim changes",
			"claim", claim)
		w.Refused(claim, err)
	}
	return nil
}

// allocated reports whether a claim has devices of this driver and node.
func (w *Writer) allocated(ctx context.Context, claim records.Claim) (bool, error) {
	found, err := w.read(ctx, claim)
	if err != nil || found == nil || found.Status.Allocation == nil {
		return false, err
	}
	return slices.ContainsFunc(found.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
		return r.Driver == w.Driver && r.Pool == w.Node
	}), nil
}

// read returns nil for a claim that no longer exists.
func (w *Writer) read(ctx context.Context, claim records.Claim) (*resourceapi.ResourceClaim, error) {
	found, err := w.Client.ResourceV1().ResourceClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && found.UID != claim.UID:
		return nil, nil //nolint:nilnil // absence is an ordinary answer
	case err != nil:
		return nil, fmt.Errorf("read the status of claim %s: %w", claim, err)
	}
	w.Seen(found)
	return found, nil
}

// has reports whether the claim already has the data as its status, which then keeps its time.
func (w *Writer) has(ctx context.Context, claim records.Claim, data string) (bool, error) {
	w.mu.Lock()
	written, unread := w.written[claim.UID], w.unread[claim.UID]
	w.mu.Unlock()
	if !unread {
		return written == data, nil
	}
	found, err := w.read(ctx, claim)
	if err != nil {
		return false, err
	}
	var text string
	if found != nil {
		for _, d := range found.Status.Devices {
			if d.Driver == w.Driver && d.Data != nil {
				text += normal(d.Data.Raw) + "\n"
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.unread, claim.UID)
	if text == data {
		w.written[claim.UID] = data
	}
	return text == data, nil
}
