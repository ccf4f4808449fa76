// SPDX-License-Identifier: Apache-2.0

package claimstatus

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/records"
)

const driver = "gpu.cleave.dev"

var claim = records.Claim{Namespace: "team", Name: "a", UID: "uid-a"}

// bed is a writer whose claims have records that a test sets, and an API server with one claim.
type bed struct {
	*Writer
	client *fake.Clientset

	mu      sync.Mutex
	records map[types.UID]*records.Record
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{records: map[types.UID]*records.Record{}, client: fake.NewClientset(&resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}})}
	b.Writer = NewWriter(b.client, driver, b.record, inventory, func(*resourceapi.ResourceClaim) {})
	return b
}

func (b *bed) record(uid types.UID) *records.Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.records[uid]
}

func (b *bed) set(r *records.Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records[claim.UID] = r
}

func inventory() *gpu.Node {
	total := uint64(80 << 30)
	pci, _ := gpu.ParsePCIAddress("0000:1b:00.0")
	return &gpu.Node{GPUs: []gpu.GPU{{PCI: pci, UUID: "GPU-1", ProductName: "NVIDIA H100 80GB HBM3", TotalMemory: &total,
		MIG: gpu.MIG{Profiles: []gpu.Profile{{ID: 19, Name: "1g.10gb", Memory: 9984 << 20}}}}}}
}

// recordOf is of one device of the only GPU.
func recordOf(d records.Device) *records.Record {
	d.Request, d.Pool, d.GPU, d.UUID = "gpu", "node", "gpu-0000-1b-00-0", "GPU-1"
	if d.Device == "" {
		d.Device = d.GPU
	}
	return &records.Record{Claim: claim, Devices: []records.Device{d}}
}

// written is the status that the API server has.
func (b *bed) written(t *testing.T) []resourceapi.AllocatedDeviceStatus {
	t.Helper()
	found, err := b.client.ResourceV1().ResourceClaims(claim.Namespace).Get(t.Context(), claim.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return found.Status.Devices
}

func TestWriter_Write(t *testing.T) {
	ci := 0
	tests := map[string]struct {
		device records.Device
		want   string
	}{
		"whole GPU": {records.Device{},
			`{"type":"gpu","uuid":"GPU-1","productName":"NVIDIA H100 80GB HBM3","pciBusID":"0000:1b:00.0","memory":"80Gi"}`},
		"partition": {records.Device{Device: "mig", Partition: &gpu.Partition{ProfileID: 19, GI: 7, CI: &ci, UUID: "MIG-1"}},
			`{"type":"mig","uuid":"MIG-1","parentUUID":"GPU-1","productName":"NVIDIA H100 80GB HBM3","pciBusID":"0000:1b:00.0",` +
				`"profile":"1g.10gb","gpuInstanceID":7,"computeInstanceID":0,"memory":"9984Mi"}`},
		"time slice": {records.Device{Device: "ts", Share: &records.Share{ID: "7c3b2f2e-0000-4000-8000-000000000001", Kind: gpu.TimeSlice, Shares: 1, Memory: 20 << 30}},
			`{"type":"timeslice","uuid":"GPU-1","productName":"NVIDIA H100 80GB HBM3","pciBusID":"0000:1b:00.0","memory":"20Gi","shares":1}`},
		"MPS with a lowered limit": {records.Device{Device: "mps", Share: &records.Share{ID: "7c3b2f2e-0000-4000-8000-000000000002", Kind: gpu.MPS, Memory: 20 << 30, Cores: 50,
			MPS: &records.MPS{ThreadPercentage: 25, Memory: 10 << 30}}},
			`{"type":"mps","uuid":"GPU-1","productName":"NVIDIA H100 80GB HBM3","pciBusID":"0000:1b:00.0","memory":"10Gi","cores":25}`},
		"admin access": {records.Device{AdminAccess: true},
			`{"type":"gpu","uuid":"GPU-1","productName":"NVIDIA H100 80GB HBM3","pciBusID":"0000:1b:00.0","memory":"80Gi","adminAccess":true}`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.set(recordOf(tt.device))
			if err := b.write(t.Context(), claim); err != nil {
				t.Fatal(err)
			}
			got := b.written(t)
			if len(got) != 1 || len(got[0].Conditions) != 1 || got[0].Conditions[0].Status != metav1.ConditionTrue {
				t.Fatalf("got %v, want one device that is ready", got)
			}
			if diff := cmp.Diff(fields(t, []byte(tt.want)), fields(t, got[0].Data.Raw)); diff != "" {
				t.Errorf("data (-want +got):\n%s", diff)
			}
			if share := tt.device.Share; (share != nil) != (got[0].ShareID != nil) || share != nil && *got[0].ShareID != share.ID {
				t.Errorf("got share %v, want that of %v", got[0].ShareID, share)
			}
			b.set(nil)
			if err := b.write(t.Context(), claim); err != nil {
				t.Fatal(err)
			}
			if got := b.written(t); len(got) > 0 {
				t.Errorf("got %v after Unprepare, want nothing", got)
			}
		})
	}
}

func fields(t *testing.T, data []byte) map[string]any {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// A claim that is given back before it had a status needs no write, unless an earlier process may have written one.
func TestWriter_GivenBackAtOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		note func(b *bed)
		want int
	}{
		"prepared here":                  {func(b *bed) { b.Prepared(claim); b.Unprepared(claim) }, 0},
		"prepared by an earlier process": {func(b *bed) { b.Unprepared(claim) }, 1},
		"prepared again after a start": {func(b *bed) {
			b.Restore([]*records.Record{recordOf(records.Device{})})
			b.Prepared(claim)
			b.Unprepared(claim)
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			tt.note(b)
			if err := b.write(t.Context(), claim); err != nil {
				t.Fatal(err)
			}
			if got := patches(b.client); got != tt.want {
				t.Errorf("%d writes, want %d", got, tt.want)
			}
		})
	}
}

// What an earlier process wrote is left as it is, with its time, and what it did not come to write is written.
func TestWriter_Restore(t *testing.T) {
	b := newBed(t)
	b.set(recordOf(records.Device{}))
	if err := b.write(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	next := &bed{client: b.client, records: b.records}
	next.Writer = NewWriter(b.client, driver, next.record, inventory, func(*resourceapi.ResourceClaim) {})
	next.Restore([]*records.Record{recordOf(records.Device{})})
	b.client.ClearActions()
	if err := next.write(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	if got := patches(b.client); got != 0 {
		t.Errorf("%d writes of a status that is right", got)
	}
	if err := b.client.Tracker().Update(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}}, claim.Namespace); err != nil {
		t.Fatal(err)
	}
	last := &bed{client: b.client, records: b.records}
	last.Writer = NewWriter(b.client, driver, last.record, inventory, func(*resourceapi.ResourceClaim) {})
	last.Restore([]*records.Record{recordOf(records.Device{})})
	if err := last.write(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	if got := last.written(t); len(got) != 1 {
		t.Errorf("got %v, want the device's status", got)
	}
}

func patches(client *fake.Clientset) int {
	n := 0
	for _, a := range client.Actions() {
		if a.GetVerb() == "patch" {
			n++
		}
	}
	return n
}

// Claims that are gone, replaced or deallocated have no status to write; an API server that fails is asked again.
func TestWriter_Run(t *testing.T) {
	tests := map[string]struct {
		err  error
		want int // writes
	}{
		"not found":   {apierrors.NewNotFound(resourceapi.Resource("resourceclaims"), claim.Name), 1},
		"another UID": {apierrors.NewConflict(resourceapi.Resource("resourceclaims"), claim.Name, errors.New("UID")), 1},
		"deallocated": {apierrors.NewInvalid(resourceapi.SchemeGroupVersion.WithKind("ResourceClaim").GroupKind(), claim.Name, nil), 1},
		"unavailable": {apierrors.NewServiceUnavailable("busy"), 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.set(recordOf(records.Device{}))
			failed := make(chan struct{}, 16)
			var once sync.Once
			b.client.PrependReactor("patch", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
				failed <- struct{}{}
				first := false
				once.Do(func() { first = true })
				return first, nil, tt.err
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); b.Run(ctx) }()
			b.Prepared(claim)
			for range tt.want {
				select {
				case <-failed:
				case <-time.After(10 * time.Second):
					t.Fatal("the status is not written again")
				}
			}
			cancel()
			<-done
			if more := len(failed); more > 0 {
				t.Errorf("%d writes more than %d", more, tt.want)
			}
		})
	}
}
