// SPDX-License-Identifier: Apache-2.0

package claimstatus

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"
	resourceac "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/records"
)

// A claim whose status could not be written is tried again, at first after retryFirst and then more and more rarely.
const (
	retryFirst = time.Second
	retryMost  = 5 * time.Minute
	// callTimeout bounds one write.
	callTimeout = 10 * time.Second
	// delay lets pods start first, and saves the writes of claims that are given back right away.
	delay = 250 * time.Millisecond
)

// conditionReady and reasonPrepared are of the condition of each prepared device.
const (
	conditionReady = "Ready"
	reasonPrepared = "Prepared"
)

// Writer writes the status of claims, beside Prepare and Unprepare: they do not wait for it, and it asks the API server for
// one claim at a time.
type Writer struct {
	client kubernetes.Interface
	driver string
	// record is what is allocated to a claim; nil where there is no record.
	record func(types.UID) *records.Record
	// inventory is nil while the driver is away.
	inventory func() *gpu.Node
	// seen is called with each claim that was read or written.
	seen  func(*resourceapi.ResourceClaim)
	queue workqueue.TypedRateLimitingInterface[records.Claim]
	now   func() time.Time

	mu sync.Mutex
	// written is the data that a claim was last given, or may have been.
	written map[types.UID]string
	// unread are claims that an earlier process may have given their status, fresh those that none has: they were prepared
	// by this one.
	unread, fresh map[types.UID]bool
}

// NewWriter writes as the field manager of the driver's name. record and inventory may be called at any time. seen is called with
// each claim that was read or written.
func NewWriter(client kubernetes.Interface, driver string, record func(types.UID) *records.Record, inventory func() *gpu.Node,
	seen func(*resourceapi.ResourceClaim)) *Writer {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[records.Claim](retryFirst, retryMost)
	return &Writer{client: client, driver: driver, record: record, inventory: inventory, seen: seen, now: time.Now,
		queue: workqueue.NewTypedRateLimitingQueue(limiter), written: map[types.UID]string{}, unread: map[types.UID]bool{},
		fresh: map[types.UID]bool{}}
}

// Prepared notes that a claim was prepared, or again. It does not wait. A nil Writer ignores it.
func (w *Writer) Prepared(claim records.Claim) {
	if w == nil {
		return
	}
	w.mu.Lock()
	w.fresh[claim.UID] = w.written[claim.UID] == "" && !w.unread[claim.UID]
	w.mu.Unlock()
	w.queue.AddAfter(claim, delay)
}

// Unprepared notes that a claim was unprepared. It does not wait. A nil Writer ignores it.
func (w *Writer) Unprepared(claim records.Claim) {
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

// Run writes until ctx ends.
func (w *Writer) Run(ctx context.Context) {
	stop := context.AfterFunc(ctx, w.queue.ShutDown)
	defer stop()
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

// write gives a claim the status that its record says, or none.
func (w *Writer) write(ctx context.Context, claim records.Claim) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	record := w.record(claim.UID)
	if record != nil && record.State != records.Prepared {
		return nil // what it becomes is noted then
	}
	devices, data, err := w.devices(record)
	if err != nil {
		return err
	}
	if same, err := w.has(ctx, claim, data); same || err != nil {
		return err
	}
	w.mu.Lock()
	w.written[claim.UID] = "unknown" // until there is an answer
	w.mu.Unlock()
	config := resourceac.ResourceClaim(claim.Name, claim.Namespace).WithUID(claim.UID).
		WithStatus(resourceac.ResourceClaimStatus().WithDevices(devices...))
	applied, err := w.client.ResourceV1().ResourceClaims(claim.Namespace).ApplyStatus(ctx, config,
		metav1.ApplyOptions{FieldManager: w.driver, Force: true})
	if err == nil {
		w.seen(applied)
	}
	if gone(err) {
		err, data = nil, ""
	}
	if err != nil {
		return fmt.Errorf("apply the status of claim %s: %w", claim, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.fresh, claim.UID)
	if data == "" {
		delete(w.written, claim.UID)
		delete(w.unread, claim.UID)
	} else {
		w.written[claim.UID] = data
	}
	klog.FromContext(ctx).V(4).Info("Wrote the status of a claim", "claim", claim, "devices", len(devices))
	return nil
}

// has reports whether the claim's status is the data already: what has not changed keeps its time.
func (w *Writer) has(ctx context.Context, claim records.Claim, data string) (bool, error) {
	w.mu.Lock()
	written, unread, fresh := w.written[claim.UID], w.unread[claim.UID], w.fresh[claim.UID]
	if data == "" && fresh {
		delete(w.fresh, claim.UID)
	}
	w.mu.Unlock()
	if data == "" {
		return fresh && written == "", nil
	}
	if !unread {
		return written == data, nil
	}
	found, err := w.client.ResourceV1().ResourceClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("read the status of claim %s: %w", claim, err)
	}
	var text string
	if err == nil && found.UID == claim.UID {
		w.seen(found)
		for _, d := range found.Status.Devices {
			if d.Driver == w.driver && d.Data != nil {
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

// normal is data as this process writes it: an API server may order fields in another way. It is empty for what another
// release wrote.
func normal(raw []byte) string {
	var d Device
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&d); err != nil {
		return ""
	}
	text, err := json.Marshal(d)
	if err != nil {
		return ""
	}
	return string(text)
}

// gone reports whether there is nothing to write to: the claim does not exist, is another one of the same name, or has been
// deallocated, and its devices with that.
func gone(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err)
}

// devices of a record in the form of the status, and the same as text without times. There are none without a record.
func (w *Writer) devices(record *records.Record) (devices []*resourceac.AllocatedDeviceStatusApplyConfiguration, text string, err error) {
	if record == nil {
		return nil, "", nil
	}
	inventory := w.inventory()
	for i := range record.Devices {
		d := &record.Devices[i]
		data, err := json.Marshal(describe(d, inventory))
		if err != nil {
			return nil, "", fmt.Errorf("encode the status of device %s: %w", d.Device, err)
		}
		text += string(data) + "\n"
		status := resourceac.AllocatedDeviceStatus().WithDriver(w.driver).WithPool(d.Pool).WithDevice(d.Device).
			WithConditions(metaac.Condition().WithType(conditionReady).WithStatus(metav1.ConditionTrue).WithReason(reasonPrepared).
				WithMessage("The device is prepared on the node").WithLastTransitionTime(metav1.NewTime(w.now()))).
			WithData(runtime.RawExtension{Raw: data})
		if d.Share != nil && !d.Share.Exclusive { // of which the allocation has no share
			status = status.WithShareID(d.Share.ID)
		}
		devices = append(devices, status)
	}
	return devices, text, nil
}
