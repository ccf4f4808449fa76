// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// stateIn opens what a plugin keeps in a directory.
func stateIn(dir string, disk store.FileSystem) (Options, error) {
	claims, err := records.OpenStore(disk, filepath.Join(dir, "claims"))
	layouts, layoutsErr := records.OpenLayouts(disk, filepath.Join(dir, "layouts"))
	locks, locksErr := OpenLocks(filepath.Join(dir, "locks"))
	return Options{Identity: testID, BootID: bootNow, Store: claims, Layouts: layouts, Locks: locks}, errors.Join(err, layoutsErr, locksErr)
}

// specsIn keeps the specs of claims of a driver name in a directory of that.
func specsIn(dir, driver string) (*specDir, error) {
	s := &specDir{dir: filepath.Join(dir, "specs", driver)}
	return s, os.MkdirAll(s.dir, 0o700)
}

// inBoot has a plugin run in a boot.
func inBoot(id string) func(*Options) { return func(o *Options) { o.BootID = id } }

// as gives a plugin another driver name.
func as(id Identity) func(*Options) { return func(o *Options) { o.Identity = id } }

// plugin is one plugin process, whose state is in a directory.
type plugin struct {
	*Preparer
	t       testing.TB
	dir     string
	specs   *specDir
	sharing *sharingDir
	disk    *faultyDisk
	notes   []string // what Notify was called with
}

// openPlugin makes a plugin's state, and the options that New is to be called with.
func openPlugin(t testing.TB, dir string, edits ...func(*Options)) (*plugin, Options) {
	t.Helper()
	p := &plugin{t: t, dir: dir, disk: &faultyDisk{FileSystem: store.Disk{}}}
	o, err := stateIn(dir, p.disk)
	must(t, err)
	for _, edit := range edits {
		edit(&o)
	}
	p.specs, err = specsIn(dir, o.Driver)
	must(t, err)
	p.sharing = &sharingDir{dir: filepath.Join(dir, "sharing"), owner: o.Driver}
	must(t, os.MkdirAll(p.sharing.dir, 0o700))
	o.Specs, o.Sharing = p.specs.under, p.sharing
	return p, o
}

// load reads the records.
func (p *plugin) load() {
	p.t.Helper()
	must(p.t, p.Load(p.t.Context(), func(reason, message string) { p.notes = append(p.notes, reason+": "+message) }))
}

func (p *plugin) wantOccupied(names ...string) {
	p.t.Helper()
	equal(p.t, "occupied devices", names, p.Partitions.Occupied(), cmpopts.EquateEmpty())
}

// bed is a plugin on a node of four GPUs of 80 GiB, which are shared four ways in time and ten by MPS.
type bed struct {
	*plugin
	id       Identity
	hardware *fakeHardware
}

// newBed is a plugin on a fresh node, loaded and with hardware.
func newBed(t testing.TB, edits ...func(*Options)) *bed {
	t.Helper()
	return openBed(t, t.TempDir(), edits...).start()
}

// compatibleID is that of a plugin in NVIDIA-compatible mode. Its policy offers no MPS on the last GPU.
var compatibleID = Identity{Driver: nvidia.DriverName, Pool: testPool}

// newCompatibleBed is a bed in NVIDIA-compatible mode.
func newCompatibleBed(t testing.TB) *bed {
	t.Helper()
	return newBed(t, as(compatibleID))
}

// openBed is one more plugin process on the node whose state is in dir, not started yet.
func openBed(t testing.TB, dir string, edits ...func(*Options)) *bed {
	t.Helper()
	p, o := openPlugin(t, dir, edits...)
	b := &bed{plugin: p, id: o.Identity, hardware: &fakeHardware{node: sharedNode(), pids: map[string][]int{}}}
	if b.id == compatibleID {
		b.hardware.node.Offers[3].MPS = nil
	}
	b.disk.FileSystem, o.Layouts = store.Disk{}, nil // it has no partitions
	b.Preparer = New(o)
	return b
}

// start does what the plugin does until it serves.
func (b *bed) start() *bed {
	b.t.Helper()
	b.load()
	b.SetHardware(b.hardware, b.specs)
	b.Recover(b.t.Context())
	return b
}

// another is one more plugin process on the node, not started yet.
func (b *bed) another() *bed {
	b.t.Helper()
	return openBed(b.t, b.dir, as(b.id))
}

// restart ends the plugin and starts it again.
func (b *bed) restart() *bed {
	b.t.Helper()
	b.die()
	return b.another().start()
}

// die does what the kernel does when the plugin ends: it releases its locks.
func (p *Preparer) die() {
	for _, lock := range p.Ledger.locks.byGPU {
		lock.close()
	}
}

// sharedNode is the node of a bed.
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

// nodeOf is a node whose GPUs are not shared.
func nodeOf(gpus int) *policy.Node {
	node := &policy.Node{Node: &gpu.Node{DriverVersion: "580.95.05"}}
	for i := range gpus {
		node.GPUs = append(node.GPUs, gpu.GPU{PCI: gpu.PCIAddress{Bus: uint8(0x10 + i)}, UUID: gpuUUID(i), Index: i, Minor: i})
	}
	return node
}

// gpuName is the device name of the i-th GPU.
func gpuName(i int) string { return gpu.PCIAddress{Bus: uint8(0x10 + i)}.DeviceName() }

// gpuUUID is the UUID of the i-th GPU.
func gpuUUID(i int) string { return fmt.Sprintf("GPU-%d", i) }

func (b *bed) prepare(uid types.UID, parts ...part) []records.Device {
	b.t.Helper()
	return mustPrepare(b.t, b.Preparer, b.claim(uid, parts...))
}

func (b *bed) tryPrepare(uid types.UID, parts ...part) error {
	_, err := b.Prepare(b.t.Context(), b.claim(uid, parts...))
	return err
}

func (b *bed) unprepare(uid types.UID) {
	b.t.Helper()
	mustUnprepare(b.t, b.Preparer, claimOf(uid))
}

// claim is claimFor for the bed's driver.
func (b *bed) claim(uid types.UID, parts ...part) *resourceapi.ResourceClaim {
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
func (b *bed) state() []string {
	b.t.Helper()
	lines := []string{}
	kept, corrupt, err := records.List(store.Disk{}, filepath.Join(b.dir, "claims"))
	must(b.t, errors.Join(append(corrupt, err)...))
	for _, r := range kept {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("record %s %s", r.Claim.UID, r.State)))
	}
	specs, err := store.Disk{}.ReadDir(b.specs.dir)
	must(b.t, err)
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
func (b *bed) want(lines ...string) {
	b.t.Helper()
	want := append([]string{}, lines...)
	slices.Sort(want)
	equal(b.t, "state", want, b.state())
}

// wantCalls fails unless these were made of Sharing since the last time.
func (b *bed) wantCalls(want ...string) {
	b.t.Helper()
	equal(b.t, "calls", want, b.sharing.took())
}

// must ends the test if what it needs fails.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// equal fails unless the two are equal.
func equal(t testing.TB, what string, want, got any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// failing fails every step that begins so.
func failing(prefix string, err error) func(string) error {
	return func(what string) error {
		if strings.HasPrefix(what, prefix) {
			return err
		}
		return nil
	}
}
