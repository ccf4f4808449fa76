// SPDX-License-Identifier: Apache-2.0

package claimstatus

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
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

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

const driver, node = "gpu.cleave.dev", "node-1"

var claim = records.Claim{Namespace: "team", Name: "a", UID: "uid-a"}

// bed is a writer whose claims have records that a test sets, and an API server with one claim.
type bed struct {
	*Writer
	client *fake.Clientset

	dir     string
	refused []error

	mu      sync.Mutex
	records map[types.UID]*records.Record
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{records: map[types.UID]*records.Record{}, client: fake.NewClientset(allocated()), dir: t.TempDir()}
	b.start(t)
	return b
}

// allocated is the claim with a device of the node.
func allocated() *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Driver: driver, Pool: node, Device: "gpu-0000-1b-00-0"}}}}},
	}
}

// start makes a new writer, as a process that knows no more than what is on disk.
func (b *bed) start(t *testing.T) {
	t.Helper()
	notes, err := records.OpenStatusNotes(store.Disk{}, b.dir)
	if err != nil {
		t.Fatal(err)
	}
	b.Writer = NewWriter(Options{Client: b.client, Driver: driver, Node: node, Notes: notes, Record: b.record, Records: b.all, Inventory: inventory,
		Seen:    func(*resourceapi.ResourceClaim) {},
		Refused: func(_ records.Claim, err error) { b.refused = append(b.refused, err) }})
}

// writes has the claim have a record, and its status written.
func (b *bed) writes(t *testing.T, r *records.Record) {
	t.Helper()
	b.set(r)
	if err := b.write(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
}

// settle writes what is queued.
func (b *bed) settle(t *testing.T) {
	t.Helper()
	for b.queue.Len() > 0 {
		next, _ := b.queue.Get()
		if err := b.write(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		b.queue.Done(next)
	}
}

func (b *bed) record(uid types.UID) *records.Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.records[uid]
}

func (b *bed) all() []*records.Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*records.Record
	for _, r := range b.records {
		if r != nil {
			all = append(all, r)
		}
	}
	return all
}

func (b *bed) set(r *records.Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records[claim.UID] = r
}

func inventory() *gpu.Node {
	total, numa := uint64(80<<30), 0
	pci, _ := gpu.ParsePCIAddress("0000:1b:00.0")
	return &gpu.Node{GPUs: []gpu.GPU{{PCI: pci, UUID: "GPU-1", ProductName: "NVIDIA H100 80GB HBM3", TotalMemory: &total,
		PCIePath: []string{"pci0000:15", "0000:15:01.0"}, NUMANode: &numa,
		MIG: gpu.MIG{Profiles: []gpu.Profile{{ID: 19, Name: "1g.10gb", Memory: 9984 << 20}}}}}}
}

func recordOf(d records.Device) *records.Record {
	d.Request, d.Pool, d.GPU, d.UUID = "gpu", node, "gpu-0000-1b-00-0", "GPU-1"
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
			`{"type":"gpu","uuid":"GPU-1","productName":"NVIDIA H100 80GB HBM3","pciBusID":"0000:1b:00.0","pcieRoot":"pci0000:15","numaNode":0,"memory":"80Gi"}`},
		"partition": {records.Device{Device: "mig", Partition: &gpu.Partition{ProfileID: 19, GI: 7, CI: &ci, UUID: "MIG-1"}},
			`{"type":"mig","uuid":"MIG-1","parentUUID":"GPU-1","productName":"NVIDIA H100 80GB HBM3","pciBusID":"0000:1b:00.0","pcieRoot":"pci0000:15","numaNode":0,` +
				`"profile":"1g.10gb","gpuInstanceID":7,"computeInstanceID":0,"memory":"9984Mi"}`},
		"time slice": {records.Device{Device: "ts", Share: &records.Share{ID: "7c3b2f2e-0000-4000-8000-000000000001", Kind: gpu.TimeSlice, Shares: 1, Memory: 20 << 30}},
			`{"type":"timeslice","uuid":"GPU-1","productName":"NVIDIA H100 80GB HBM3","pciBusID":"0000:1b:00.0","pcieRoot":"pci0000:15","numaNode":0,"memory":"20Gi","shares":1}`},
		"MPS with a lowered limit": {records.Device{Device: "mps", Share: &records.Share{ID: "7c3b2f2e-0000-4000-8000-000000000002", Kind: gpu.MPS, Memory: 20 << 30, Cores: 50,
			MPS: &records.MPS{ThreadPercentage: 25, Memory: 10 << 30}}},
			`{"type":"mps","uuid":"GPU-1","productName":"NVIDIA H100 80GB HBM3","pciBusID":"0000:1b:00.0","pcieRoot":"pci0000:15","numaNode":0,"memory":"10Gi","cores":25}`},
		"admin access": {records.Device{AdminAccess: true, ShareID: "7c3b2f2e-0000-4000-8000-000000000003"},
			`{"type":"gpu","uuid":"GPU-1","productName":"NVIDIA H100 80GB HBM3","pciBusID":"0000:1b:00.0","pcieRoot":"pci0000:15","numaNode":0,"memory":"80Gi","adminAccess":true}`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.writes(t, recordOf(tt.device))
			got := b.written(t)
			if len(got) != 1 || len(got[0].Conditions) != 1 || got[0].Conditions[0].Status != metav1.ConditionTrue {
				t.Fatalf("got %v, want one device that is ready", got)
			}
			if diff := cmp.Diff(fields(t, []byte(tt.want)), fields(t, got[0].Data.Raw)); diff != "" {
				t.Errorf("data (-want +got):\n%s", diff)
			}
			if id, want := got[0].ShareID, tt.device.AllocatedShareID(); (id != nil) != (want != "") || id != nil && *id != want {
				t.Errorf("got share ID %v, want %q", id, want)
			}
			b.writes(t, nil)
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

// A claim that is unprepared before it had a status needs no write.
func TestWriter_UnpreparedAtOnce(t *testing.T) {
	b := newBed(t)
	b.writes(t, nil)
	if got := patches(b.client); got != 0 {
		t.Errorf("%d writes, want none", got)
	}
}

// A process that is killed after Unprepare, before the API server has removed the status, leaves that to the next one. So does
// one that wrote a status and was killed before its answer.
func TestWriter_KilledBeforeRemoval(t *testing.T) {
	for name, answered := range map[string]bool{"status written": true, "status written without an answer": false} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.set(recordOf(records.Device{}))
			lost := !answered
			b.client.PrependReactor("patch", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
				return lost, nil, errors.New("connection lost")
			})
			if err := b.write(t.Context(), claim); (err == nil) != answered {
				t.Fatal(err)
			}
			b.set(nil) // unprepared, and killed
			lost = false
			b.client.ClearActions()
			b.start(t)
			b.Sweep(t.Context())
			b.settle(t)
			if got := b.written(t); len(got) > 0 || patches(b.client) != 1 {
				t.Errorf("status %v of a claim that is not prepared, after %d writes", got, patches(b.client))
			}
			b.client.ClearActions()
			b.start(t)
			b.Sweep(t.Context())
			b.settle(t)
			if got := patches(b.client); got != 0 {
				t.Errorf("%d more writes after the status is removed", got)
			}
		})
	}
}

// A claim that is being released, while the driver is away for instance, is not ready.
func TestWriter_Releasing(t *testing.T) {
	b := newBed(t)
	b.writes(t, recordOf(records.Device{}))
	releasing := recordOf(records.Device{})
	releasing.State = records.Releasing
	b.writes(t, releasing)
	if got := b.written(t); len(got) > 0 {
		t.Errorf("status %v of a claim that is being released", got)
	}
}

// What an earlier process wrote is left as it is, with its time, and what it did not come to write is written.
func TestWriter_Restore(t *testing.T) {
	b := newBed(t)
	all := []*records.Record{recordOf(records.Device{})}
	b.writes(t, all[0])
	b.start(t)
	b.Restore(all)
	b.client.ClearActions()
	b.settle(t)
	if got := patches(b.client); got != 0 {
		t.Errorf("%d writes of a status that is right", got)
	}
	if err := b.client.Tracker().Update(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), allocated(), claim.Namespace); err != nil {
		t.Fatal(err)
	}
	b.start(t)
	b.Restore(all)
	b.settle(t)
	if got := b.written(t); len(got) != 1 {
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

// Claims that are gone, replaced or deallocated have no status to write; what the API server refuses is reported, and it is
// not asked again; one that fails is.
func TestWriter_Run(t *testing.T) {
	invalid := apierrors.NewInvalid(resourceapi.SchemeGroupVersion.WithKind("ResourceClaim").GroupKind(), claim.Name, nil)
	deallocated := allocated()
	deallocated.Status.Allocation = nil
	elsewhere := allocated()
	elsewhere.Status.Allocation.Devices.Results[0].Pool = "node-2"
	tests := map[string]struct {
		err     error
		claim   *resourceapi.ResourceClaim // nil for the allocated one
		want    int                        // writes
		refused int
	}{
		"not found":           {apierrors.NewNotFound(resourceapi.Resource("resourceclaims"), claim.Name), nil, 1, 0},
		"another UID":         {apierrors.NewConflict(resourceapi.Resource("resourceclaims"), claim.Name, errors.New("UID")), nil, 1, 0},
		"deallocated":         {invalid, deallocated, 1, 0},
		"allocated elsewhere": {invalid, elsewhere, 1, 0},
		"refused":             {invalid, nil, 1, 1},
		"unavailable":         {apierrors.NewServiceUnavailable("busy"), nil, 2, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.set(recordOf(records.Device{}))
			if tt.claim != nil {
				gvr := resourceapi.SchemeGroupVersion.WithResource("resourceclaims")
				if err := b.client.Tracker().Update(gvr, tt.claim, claim.Namespace); err != nil {
					t.Fatal(err)
				}
			}
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
			b.Changed(claim)
			for range tt.want {
				select {
				case <-failed:
				case <-time.After(10 * time.Second):
					t.Fatal("the status is not written again")
				}
			}
			b.queue.ShutDownWithDrain()
			<-done
			cancel()
			if more := len(failed); more > 0 {
				t.Errorf("%d writes more than %d", more, tt.want)
			}
			if got := len(b.refused); got != tt.refused {
				t.Errorf("refused %v, want %d", b.refused, tt.refused)
			}
		})
	}
}

func TestManagerOf(t *testing.T) {
	if got := managerOf(driver, node); got != "gpu.cleave.dev/node-1" {
		t.Errorf("got %s", got)
	}
	long := strings.Repeat("n", 250)
	if got := managerOf(driver, long); len(got) > maxManager || got == managerOf(driver, long+"x") {
		t.Errorf("got %s for a long name", got)
	}
}

// Device metadata has what the status has.
func TestDevice_Attributes(t *testing.T) {
	ci := 0
	d := recordOf(records.Device{Partition: &gpu.Partition{ProfileID: 19, GI: 7, CI: &ci, UUID: "MIG-1"}}).Devices[0]
	data := Describe(&d, inventory())
	got := map[string]any{}
	for name, a := range Attributes(&data) {
		if a.StringValue != nil {
			got[name] = *a.StringValue
		} else {
			got[name] = *a.IntValue
		}
	}
	want := map[string]any{"type": "mig", "uuid": "MIG-1", "parentUUID": "GPU-1", "productName": "NVIDIA H100 80GB HBM3", "profile": "1g.10gb",
		"resource.kubernetes.io/pciBusID": "0000:1b:00.0", "resource.kubernetes.io/pcieRoot": "pci0000:15",
		"resource.kubernetes.io/numaNode": int64(0), "gpuInstanceID": int64(7), "computeInstanceID": int64(0), "memoryBytes": int64(9984 << 20)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
