// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

const (
	testDriver = "gpu.cleave.dev"
	testPool   = "node-1"
	bootNow    = "boot-now"
)

var testID = Identity{Driver: testDriver, Pool: testPool}

// fakeHardware is a node whose GPUs do as a test says.
type fakeHardware struct {
	node *policy.Node
	// verify is asked for each GPU; nil means all are well.
	verify func(ctx context.Context, g *gpu.GPU) error

	// modes are compute modes by device name, reads counts how often one was read.
	modes   map[string]gpu.ComputeMode
	modeErr error
	reads   int
	// absent are the devices whose GPUs were taken out; others that the node lacks cannot be read.
	absent []string

	mu           sync.Mutex
	pids         map[string][]int // by device name
	lists        int              // calls of Processes
	processesErr error
}

func (h *fakeHardware) Node() *policy.Node { return h.node }

func (h *fakeHardware) Absent(pci gpu.PCIAddress) bool {
	return slices.Contains(h.absent, pci.DeviceName())
}

func (h *fakeHardware) VerifyGPU(ctx context.Context, g *gpu.GPU) error {
	if h.verify == nil {
		return nil
	}
	return h.verify(ctx, g)
}

func (h *fakeHardware) ComputeMode(_ context.Context, pci gpu.PCIAddress) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reads++
	return int(h.modes[pci.DeviceName()]), h.modeErr
}

func (h *fakeHardware) Processes(_ context.Context, pci gpu.PCIAddress) ([]int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lists++
	return h.pids[pci.DeviceName()], h.processesErr
}

// A fakeHardware has whole GPUs only; partitions are tested on simulated boards.
func (h *fakeHardware) AwaitFabric(context.Context, *gpu.GPU) error { return nil }

func (h *fakeHardware) Usable(*gpu.GPU) error { return nil }

func (h *fakeHardware) Release(context.Context, gpu.PCIAddress) error { return nil }

func (h *fakeHardware) Retake(context.Context, gpu.PCIAddress) error { return nil }

func (h *fakeHardware) SetMIG(context.Context, gpu.PCIAddress, bool) error { return nil }

func (h *fakeHardware) CreatePartition(context.Context, gpu.Shape) (gpu.Partition, error) {
	return gpu.Partition{}, gpu.ErrNotSupported
}

func (h *fakeHardware) DestroyPartition(context.Context, gpu.PCIAddress, gpu.Partition) error {
	return gpu.ErrNotSupported
}

func (h *fakeHardware) PartitionAt(context.Context, gpu.PCIAddress, gpu.Partition) (*gpu.Partition, error) {
	return nil, nil //nolint:nilnil // whole GPUs have no partitions
}

func (h *fakeHardware) Partitions(context.Context, *gpu.GPU) ([]gpu.Partition, error) {
	return nil, nil
}

// fakeAPI is an API server with these claims.
type fakeAPI struct {
	claims []*resourceapi.ResourceClaim
	err    error
	lists  int // calls of ClaimByUID
	// meanwhile is what happens while a method answers with what it has read, and makes it fail; nil for nothing.
	meanwhile func(ctx context.Context, method string) error
}

// answered is the end of each method.
func (a *fakeAPI) answered(ctx context.Context, method string) error {
	if a.meanwhile != nil {
		return errors.Join(a.meanwhile(ctx, method), a.err)
	}
	return a.err
}

func (a *fakeAPI) Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	for _, c := range a.claims {
		if c.Namespace == namespace && c.Name == name {
			return c, a.answered(ctx, "Claim")
		}
	}
	return nil, a.answered(ctx, "Claim")
}

func (a *fakeAPI) ClaimByUID(ctx context.Context, uid types.UID) (*resourceapi.ResourceClaim, error) {
	a.lists++
	for _, c := range a.claims {
		if c.UID == uid {
			return c, a.answered(ctx, "ClaimByUID")
		}
	}
	return nil, a.answered(ctx, "ClaimByUID")
}

func (a *fakeAPI) Each(ctx context.Context, visit func(*resourceapi.ResourceClaim) bool) error {
	for _, c := range a.claims {
		if a.err == nil && !visit(c) {
			break
		}
	}
	return a.answered(ctx, "Each")
}

// faultyDisk is the real disk with errors where a test wants them.
type faultyDisk struct {
	store.FileSystem
	fail func(op, path string) error
}

// failOp fails one operation of a disk, failAt only with files whose paths end so.
func failOp(name string, err error) func(op, path string) error { return failAt(name, "", err) }

func failAt(name, end string, err error) func(op, path string) error {
	return func(op, path string) error {
		if op == name && strings.HasSuffix(path, end) {
			return err
		}
		return nil
	}
}

func (d *faultyDisk) err(op, path string) error {
	if d.fail == nil {
		return nil
	}
	return d.fail(op, path)
}

func (d *faultyDisk) ReadDir(path string) ([]string, error) {
	if err := d.err("ReadDir", path); err != nil {
		return nil, err
	}
	return d.FileSystem.ReadDir(path)
}

func (d *faultyDisk) ReadFile(path string, limit int64) ([]byte, error) {
	if err := d.err("ReadFile", path); err != nil {
		return nil, err
	}
	return d.FileSystem.ReadFile(path, limit)
}

func (d *faultyDisk) WriteFile(path string, data []byte) error {
	if err := d.err("WriteFile", path); err != nil {
		return err
	}
	return d.FileSystem.WriteFile(path, data)
}

func (d *faultyDisk) WriteDurable(path string, data []byte) error { return d.WriteFile(path, data) }

func (d *faultyDisk) Rename(from, to string) error {
	if err := d.err("Rename", from); err != nil {
		return err
	}
	return d.FileSystem.Rename(from, to)
}

func (d *faultyDisk) Remove(path string) error {
	if err := d.err("Remove", path); err != nil {
		return err
	}
	return d.FileSystem.Remove(path)
}

// claimOn is an allocated and reserved claim that has the named GPUs for itself, for request "gpu".
func claimOn(uid types.UID, gpus ...int) *resourceapi.ResourceClaim {
	var results []resourceapi.DeviceRequestAllocationResult
	for _, i := range gpus {
		results = append(results, result("gpu", i))
	}
	return claimOf(uid, results...)
}

func claimOf(uid types.UID, results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim-" + string(uid), UID: uid},
		Status: resourceapi.ResourceClaimStatus{
			Allocation:  &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}},
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod", UID: "pod-uid"}},
		},
	}
}

func result(request string, i int) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: request, Driver: testDriver, Pool: testPool, Device: gpuName(i)}
}

func adminResult(request string, i int) resourceapi.DeviceRequestAllocationResult {
	r := result(request, i)
	yes := true
	r.AdminAccess = &yes
	return r
}

func refOf(claim *resourceapi.ResourceClaim) records.Claim {
	return records.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
}

// deviceFor is what Prepare answers for a GPU.
func deviceFor(request string, i int) records.Device {
	return records.Device{
		Request: request, Pool: testPool, Device: gpuName(i), GPU: gpuName(i), UUID: gpuUUID(i),
		CDIDeviceIDs: []string{testDriver + "/gpu=" + gpuName(i)},
	}
}

// server is a Preparer, or the Named of a former driver name.
type server interface {
	Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]records.Device, error)
	Unprepare(ctx context.Context, claim records.Claim) error
}

func mustPrepare(t testing.TB, e server, claim *resourceapi.ResourceClaim) []records.Device {
	t.Helper()
	devices, err := e.Prepare(t.Context(), claim)
	if err != nil {
		t.Fatalf("Prepare of claim %s: %v", claim.UID, err)
	}
	return devices
}

func mustUnprepare(t testing.TB, e server, claim *resourceapi.ResourceClaim) {
	t.Helper()
	if err := e.Unprepare(t.Context(), refOf(claim)); err != nil {
		t.Fatalf("Unprepare of claim %s: %v", claim.UID, err)
	}
}

// onDisk lists what the records say, as "uid: gpu gpu", in order, and fails if two claims have one GPU.
func onDisk(t testing.TB, dir string) []string {
	t.Helper()
	kept, err := records.OpenStore(store.Disk{}, filepath.Join(dir, "claims"))
	must(t, err)
	uids, err := kept.Names()
	must(t, err)
	lines, owner := []string{}, map[string]types.UID{}
	for _, uid := range uids {
		r, err := kept.Read(uid)
		if corrupt := (*store.CorruptError)(nil); errors.As(err, &corrupt) {
			lines = append(lines, string(uid)+": corrupt")
			continue
		}
		must(t, err)
		line := string(uid) + ":"
		for _, d := range r.Devices {
			line += " " + d.GPU
			if d.AdminAccess || d.IsShared() {
				continue
			}
			if other, ok := owner[d.GPU]; ok && other != uid {
				t.Errorf("GPU %s is allocated to claims %s and %s", d.GPU, other, uid)
			}
			owner[d.GPU] = uid
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}

// line is what onDisk says of a claim on these GPUs.
func line(uid types.UID, gpus ...int) string {
	s := string(uid) + ":"
	for _, i := range gpus {
		s += " " + gpuName(i)
	}
	return s
}

// spoil makes a claim's record corrupt, and the copy of it.
func spoil(t testing.TB, dir string, uid types.UID) {
	t.Helper()
	spoilFirst(t, dir, uid)
	must(t, os.WriteFile(copyPath(dir, uid), []byte("not a record"), 0o600))
}

// spoilFirst makes a claim's record corrupt, and leaves the copy.
func spoilFirst(t testing.TB, dir string, uid types.UID) {
	t.Helper()
	must(t, os.WriteFile(recordPath(dir, uid), []byte("not a record"), 0o600))
}

func recordPath(dir string, uid types.UID) string {
	return filepath.Join(dir, "claims", string(uid)+".json")
}

func copyPath(dir string, uid types.UID) string {
	return filepath.Join(dir, "claims", "copies", string(uid)+".json")
}
