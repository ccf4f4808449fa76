// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/records"
	"github.com/cleave-dra/cleave/pkg/store"
)

// gi is a gibibyte.
const gi = int64(1) << 30

// sharingDir is the driver's nvidia-smi and the node's MPS supervisor. What they know is in files, as it outlives the
// plugin: "interval GPU" holds the interval of a GPU, and "mps GPU claim" says that a GPU's server serves a claim, and
// holds the claim's owner.
type sharingDir struct {
	dir string
	// owner is the driver name of the plugin; empty for that of an earlier release. onRetain is called by RetainMPS.
	owner    string
	onRetain func(gpuDevice string)
	// step is called for each change before and after it; err refuses it before it is made, or makes it seem to have
	// failed after it. Nil for neither.
	step func(what string)
	err  func(what string) error

	mu    sync.Mutex
	calls []string
	// retained are the claims of the last RetainMPS of each GPU.
	retained map[string][]types.UID
}

func (s *sharingDir) change(call string, do func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, call)
	if err := hook(s.step, s.err, "before "+call); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return hook(s.step, s.err, "after "+call)
}

// hook reports a step to a test and asks it for an error.
func hook(step func(string), err func(string) error, what string) error {
	if step != nil {
		step(what)
	}
	if err != nil {
		return err(what)
	}
	return nil
}

func (s *sharingDir) SetTimeSlice(_ context.Context, g *gpu.GPU, interval string) error {
	return s.change(fmt.Sprintf("SetTimeSlice %s %s", g.PCI.DeviceName(), interval), func() error {
		return os.WriteFile(filepath.Join(s.dir, "interval "+g.PCI.DeviceName()), []byte(interval), 0o600)
	})
}

func (s *sharingDir) StartMPS(_ context.Context, uid types.UID, of gpu.Shape, uuid string, _ *policy.Offer, limits *records.MPS) (pipeDir, shmDir string, err error) {
	name := of.Name()
	if uuid == "" || of.IsShare() {
		panic("StartMPS of " + name + " with UUID " + uuid)
	}
	call := fmt.Sprintf("StartMPS %s %s", name, uid)
	if limits != nil {
		call += fmt.Sprintf(" %d%% %dGi", limits.ThreadPercentage, limits.Memory/gi)
	}
	err = s.change(call, func() error {
		return os.WriteFile(filepath.Join(s.dir, fmt.Sprintf("mps %s %s", name, uid)), []byte(s.owner), 0o600)
	})
	return "/run/mps/" + name + "/pipe", "/run/mps/" + name + "/shm", err
}

func (s *sharingDir) StopMPS(_ context.Context, uid types.UID, gpuDevice string) error {
	return s.change(fmt.Sprintf("StopMPS %s %s", gpuDevice, uid), func() error {
		return store.Disk{}.Remove(filepath.Join(s.dir, fmt.Sprintf("mps %s %s", gpuDevice, uid)))
	})
}

func (s *sharingDir) RetainMPS(_ context.Context, gpuDevice string, uids []types.UID) error {
	call := "RetainMPS " + gpuDevice
	if s.onRetain != nil {
		s.onRetain(gpuDevice)
	}
	others := slices.DeleteFunc(s.served(gpuDevice), func(uid types.UID) bool {
		return slices.Contains(uids, uid) || s.ownerOf(gpuDevice, uid) != s.owner
	})
	if len(others) == 0 { // no step: there is nothing to change
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calls = append(s.calls, call)
		s.retain(gpuDevice, uids)
		return hook(nil, s.err, "before "+call)
	}
	return s.change(call, func() error {
		s.retain(gpuDevice, uids)
		for _, uid := range others {
			if err := os.Remove(filepath.Join(s.dir, fmt.Sprintf("mps %s %s", gpuDevice, uid))); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *sharingDir) retain(gpuDevice string, uids []types.UID) {
	if s.retained == nil {
		s.retained = map[string][]types.UID{}
	}
	s.retained[gpuDevice] = uids
}

// served lists the claims that a GPU's server serves.
func (s *sharingDir) served(gpuDevice string) []types.UID {
	var uids []types.UID
	for _, name := range s.files() {
		if uid, ok := strings.CutPrefix(name, "mps "+gpuDevice+" "); ok {
			uids = append(uids, types.UID(uid))
		}
	}
	return uids
}

// ownerOf is who registered a claim.
func (s *sharingDir) ownerOf(gpuDevice string, uid types.UID) string {
	owner, err := os.ReadFile(filepath.Join(s.dir, fmt.Sprintf("mps %s %s", gpuDevice, uid)))
	if err != nil {
		panic(err)
	}
	return string(owner)
}

func (s *sharingDir) ServedMPS(context.Context) ([]records.Served, error) {
	if err := hook(nil, s.err, "before ServedMPS"); err != nil {
		return nil, err
	}
	var served []records.Served
	for _, name := range s.files() {
		if words := strings.Fields(name); len(words) == 3 && words[0] == "mps" {
			served = append(served, records.Served{Server: words[1], Claim: types.UID(words[2]), Owner: s.ownerOf(words[1], types.UID(words[2]))})
		}
	}
	return served, nil
}

// interval is that of a GPU; empty if it is the driver's own.
func (s *sharingDir) interval(gpuDevice string) string {
	data, err := os.ReadFile(filepath.Join(s.dir, "interval "+gpuDevice))
	if err != nil || string(data) == "Default" {
		return ""
	}
	return string(data)
}

func (s *sharingDir) files() []string {
	names, err := store.Disk{}.ReadDir(s.dir)
	if err != nil {
		panic(err)
	}
	return names
}

// took returns the calls since the last time.
func (s *sharingDir) took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

// shareBed is one plugin process on a node of four GPUs of 80 GiB, which are shared four ways in time and ten by MPS.
type shareBed struct {
	*Preparer
	t        testing.TB
	id       Identity
	dir      string
	hardware *fakeHardware
	specs    *specDir
	disk     *faultyDisk
	sharing  *sharingDir
	notes    []string
}

// sharedNode is the node of a shareBed.
func sharedNode() *policy.Node {
	node := nodeOf(4)
	for range node.GPUs {
		node.Offers = append(node.Offers, policy.Offer{
			Whole:     true,
			TimeSlice: &policy.Sharing{Shares: 4, Memory: policy.NewCut(80*gi, 4, gi, gi), Enforcement: policy.NotEnforced},
			MPS: &policy.Sharing{
				Shares: 10, Memory: policy.NewCut(80*gi, 10, gi, gi), Cores: policy.NewCut(100, 10, 1, 1), SharedMemory: gi, Enforcement: policy.EnforcedPerProcess,
			},
		})
	}
	return node
}

func newShareBed(t testing.TB) *shareBed {
	t.Helper()
	b := makeShareBed(t, t.TempDir(), nil, testID)
	b.start()
	return b
}

// compatibleID is that of a plugin in NVIDIA-compatible mode. Its policy offers no MPS on the last GPU.
var compatibleID = Identity{Driver: nvidia.DriverName, Pool: testPool}

// newCompatibleBed is a shareBed in NVIDIA-compatible mode.
func newCompatibleBed(t testing.TB) *shareBed {
	t.Helper()
	b := makeShareBed(t, t.TempDir(), nil, compatibleID)
	b.start()
	return b
}

// makeShareBed is one more plugin process on the node whose state is in dir, not started yet. disk is the real one if nil.
func makeShareBed(t testing.TB, dir string, disk store.FileSystem, id Identity) *shareBed {
	t.Helper()
	b := &shareBed{
		t: t, id: id, dir: dir, disk: &faultyDisk{}, hardware: &fakeHardware{node: sharedNode(), pids: map[string][]int{}},
		specs: &specDir{dir: filepath.Join(dir, "specs")}, sharing: &sharingDir{dir: filepath.Join(dir, "sharing"), owner: id.Driver},
	}
	if disk == nil {
		disk = b.disk
	}
	for _, dir := range []string{b.specs.dir, b.sharing.dir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	store, err := records.OpenStore(disk, filepath.Join(dir, "claims"))
	if err != nil {
		t.Fatal(err)
	}
	locks, err := OpenLocks(filepath.Join(dir, "locks"))
	if err != nil {
		t.Fatal(err)
	}
	if id == compatibleID {
		b.hardware.node.Offers[3].MPS = nil
	}
	b.Preparer = New(Options{Identity: id, BootID: bootNow, Store: store, Locks: locks, Specs: b.specs, Sharing: b.sharing})
	return b
}

// start does what the plugin does until it serves.
func (b *shareBed) start() {
	b.t.Helper()
	if err := b.Load(b.t.Context(), func(reason, message string) { b.notes = append(b.notes, reason+": "+message) }); err != nil {
		b.t.Fatal(err)
	}
	b.SetHardware(b.hardware, b.specs)
	b.Recover(b.t.Context())
}

// restart ends the plugin and starts it again.
func (b *shareBed) restart() *shareBed {
	b.t.Helper()
	b.end()
	again := makeShareBed(b.t, b.dir, nil, b.id)
	again.start()
	return again
}

// end does what the kernel does when the plugin ends: it releases its locks.
func (b *shareBed) end() {
	for _, lock := range b.Ledger.locks.byGPU {
		lock.close()
	}
}

func (b *shareBed) prepare(uid types.UID, parts ...part) []records.Device {
	b.t.Helper()
	return mustPrepare(b.t, b.Preparer, b.claim(uid, parts...))
}

func (b *shareBed) tryPrepare(uid types.UID, parts ...part) error {
	_, err := b.Prepare(b.t.Context(), b.claim(uid, parts...))
	return err
}

func (b *shareBed) unprepare(uid types.UID) {
	b.t.Helper()
	mustUnprepare(b.t, b.Preparer, claimOf(uid))
}

// claim is claimFor for the bed's driver.
func (b *shareBed) claim(uid types.UID, parts ...part) *resourceapi.ResourceClaim {
	return forDriver(b.id.Driver, claimFor(uid, parts...))
}

// forDriver gives a claim's devices and parameters of testDriver to another driver.
func forDriver(name string, claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	devices := &claim.Status.Allocation.Devices
	for i := range devices.Results {
		if devices.Results[i].Driver == testDriver {
			devices.Results[i].Driver = name
		}
	}
	for i := range devices.Config {
		if o := devices.Config[i].Opaque; o != nil && o.Driver == testDriver {
			o.Driver = name
		}
	}
	return claim
}

// state is all that there is: records, specs, intervals, and whom MPS servers serve; GPUs by index.
func (b *shareBed) state() []string {
	b.t.Helper()
	lines := []string{}
	kept, err := records.OpenStore(store.Disk{}, filepath.Join(b.dir, "claims"))
	if err != nil {
		b.t.Fatal(err)
	}
	uids, err := kept.Names()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, uid := range uids {
		r, err := kept.Read(uid)
		if err != nil {
			b.t.Fatal(err)
		}
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("record %s %s", uid, r.State)))
	}
	specs, err := store.Disk{}.ReadDir(b.specs.dir)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, name := range specs {
		lines = append(lines, "spec "+name)
	}
	for i := range b.hardware.node.GPUs {
		if interval := b.sharing.interval(gpuName(i)); interval != "" {
			lines = append(lines, fmt.Sprintf("interval %d %s", i, interval))
		}
		for _, uid := range b.sharing.served(gpuName(i)) {
			lines = append(lines, fmt.Sprintf("mps %d %s", i, uid))
		}
	}
	slices.Sort(lines)
	return lines
}

// want fails unless this is all there is.
func (b *shareBed) want(lines ...string) {
	b.t.Helper()
	want := append([]string{}, lines...)
	slices.Sort(want)
	if diff := cmp.Diff(want, b.state()); diff != "" {
		b.t.Errorf("state (-want +got):\n%s", diff)
	}
}

// wantCalls fails unless these were made of Sharing since the last time.
func (b *shareBed) wantCalls(want ...string) {
	b.t.Helper()
	if diff := cmp.Diff(want, b.sharing.took()); diff != "" {
		b.t.Errorf("calls (-want +got):\n%s", diff)
	}
}
