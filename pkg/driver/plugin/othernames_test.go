// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/cdi"
	"github.com/cleave-dra/cleave/pkg/driver/cdi/hook"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/names"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// namesBed is a plugin on a node that another driver name has served. It has no hardware yet.
type namesBed struct {
	*service
	t        *testing.T
	recorder *record.FakeRecorder
	other    string
	store    *records.Store
}

// The device that the claims of the tests have.
const renamedGPU = "gpu-0000-1b-00-0"

// newNamesBed is a plugin by a name; state is the other name, whose state it finds.
func newNamesBed(t *testing.T, own, other string, objects ...runtime.Object) *namesBed {
	t.Helper()
	b := &namesBed{t: t, recorder: record.NewFakeRecorder(100), other: other}
	config, _ := shortConfig(t)
	config.DriverName = own
	b.service = newService(config)
	b.client, b.events = fake.NewClientset(objects...), cluster.NewEventsWith(b.recorder, "n")
	b.runs()()
	b.names = newOtherNames(b.service)
	t.Cleanup(func() {
		for _, o := range b.names.all() {
			o.stopServing()
		}
	})
	b.published()
	locks, locksErr := claims.OpenLocks(filepath.Join(config.nodeDir(), locksDir))
	var storeErr error
	if b.store, storeErr = records.OpenStore(store.Disk{}, filepath.Join(config.nodeDir(), records.ClaimsDir)); storeErr != nil || locksErr != nil {
		t.Fatal(storeErr, locksErr)
	}
	b.engine = claims.New(claims.Options{
		Identity: claims.Identity{Driver: own, Pool: "node-1"}, BootID: "boot", Store: b.store, Locks: locks,
		Specs: func(driver string) claims.SpecRemover { return cdi.Remover{Dir: config.CDIDir, Driver: driver} },
	})
	b.allocations = newAllocations(b.service)
	return b
}

// dir is one in the other name's state.
func (b *namesBed) dir(name string) string {
	return filepath.Join(b.config.PluginsDir, b.other, name)
}

// record puts the record of a claim of the other name on disk.
func (b *namesBed) record(claim *resourceapi.ResourceClaim) {
	b.t.Helper()
	if err := b.store.Write(&records.Record{
		Format: records.Format, BootID: "boot", Driver: b.other, Claim: records.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
		Devices: []records.Device{{Request: "r", Pool: "node-1", Device: renamedGPU, GPU: renamedGPU, UUID: "GPU-1"}},
	}); err != nil {
		b.t.Fatal(err)
	}
	if err := b.engine.Load(b.t.Context(), nil); err != nil {
		b.t.Fatal(err)
	}
}

// published are the devices that the other name publishes, from now on.
func (b *namesBed) published(devices ...string) {
	b.t.Helper()
	var others []cluster.Device
	for _, name := range devices {
		whole := name
		for _, kind := range gpu.Shares() {
			whole = strings.TrimSuffix(whole, "-"+string(kind))
		}
		if pci, err := gpu.ParseDeviceName(whole); err == nil { // those without an address are not kept
			others = append(others, cluster.Device{Driver: b.other, Name: name, PCI: pci})
		}
	}
	b.names.state = func() cluster.State { return cluster.State{Others: others} }
}

// runs has a plugin of the other name run until the returned function is called.
func (b *namesBed) runs() (ends func()) {
	b.t.Helper()
	return acquired(b.t, b.dir("")).release
}

// want asks for claims and looks once, and compares what is withheld, whether the other name is served, and what is allocated.
func (b *namesBed) want(step, hold string, served bool, allocated ...string) {
	b.t.Helper()
	ctx := context.WithoutCancel(b.t.Context())
	_, _ = b.allocations.follow(ctx)
	b.names.look(ctx)
	var got string
	for _, n := range b.names.states() {
		got += names.Hold(n.Driver, n.State)
	}
	if (hold == "") != (got == "") || !strings.Contains(got, hold) {
		b.t.Errorf("%s: the node is not published because of %q, want %q", step, got, hold)
	}
	sockets, err := filepath.Glob(filepath.Join(b.config.RegistryDir, b.other+"*.sock"))
	if err != nil || (len(sockets) > 0) != served {
		b.t.Errorf("%s: served at %v, %v, want %t", step, sockets, err, served)
	}
	var uids []string
	for _, r := range b.engine.Ledger.Allocations() {
		uids = append(uids, string(r.Claim.UID))
	}
	if !slices.Equal(uids, allocated) {
		b.t.Errorf("%s: allocated to %v, want %v", step, uids, allocated)
	}
}

// asksAgain has the API server asked for claims at the next look, without a pause.
func (b *namesBed) asksAgain() {
	b.allocations.follower = claims.NewFollower(b.engine.Ledger, cluster.Claims{Client: b.client}, b.names.inventory)
	b.names.listing = retry{}
}

// renamedClaim has a device of the node by a driver's name.
func renamedClaim(uid, driver string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: uid, UID: "uid-x"},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: driver, Pool: "node-1", Device: renamedGPU}},
		}}},
	}
}

func TestOtherNames_ServedUntilNothingIsLeft(t *testing.T) {
	for own, other := range map[string]string{"gpu.cleave.dev": nvidia.DriverName, nvidia.DriverName: "gpu.cleave.dev", "gpus.example.com": "gpu.cleave.dev"} {
		t.Run(other, func(t *testing.T) {
			claim := renamedClaim("x", other)
			b := newNamesBed(t, own, other, claim)
			b.record(claim)
			ends := b.runs()
			b.published(renamedGPU+"-mig-19-0", renamedGPU+"-mig-19-1") // a device that has its address in its name alone
			b.want("its plugin runs and publishes", "still publishes them", false, "uid-x")
			ends()
			b.want("its plugin is gone", "still publishes them", false, "uid-x")
			b.published()
			b.want("its slices are gone", "", true, "uid-x")
			ends = b.runs()
			b.want("its plugin runs again", "", false, "uid-x")
			ends()
			b.want("and is gone again", "", true, "uid-x")

			o := b.names.all()[0]
			if err := b.engine.Named(b.other).Unprepare(t.Context(), records.Claim{Namespace: "ns", Name: "x", UID: "uid-x"}); err != nil {
				t.Fatal(err)
			}
			b.want("unprepared, still allocated", "", true, "uid-x")
			claim.Status.Allocation = nil
			if _, err := b.client.ResourceV1().ResourceClaims("ns").UpdateStatus(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			b.asksAgain()
			b.want("deallocated", "", true)
			o.idleSince = time.Now().Add(-names.Linger)
			b.want("nothing is left for a while", "", false)
			if _, err := os.Stat(b.dir("")); err == nil {
				t.Error("its state is left")
			}
			if len(b.names.all()) > 0 {
				t.Error("the name is still known")
			}
			close(b.recorder.Events)
			var events []string
			for e := range b.recorder.Events {
				events = append(events, strings.Fields(e)[1])
			}
			if want := []string{reasonOtherName, reasonOtherNameReleased}; !slices.Equal(events, want) {
				t.Errorf("Events are %v, want %v", events, want)
			}
		})
	}
}

// A claim that was allocated and not prepared has no record: only the API server knows it. Where that cannot be asked,
// nothing is published.
func TestOtherNames_AllocatedAndNotPrepared(t *testing.T) {
	b := newNamesBed(t, nvidia.DriverName, "gpu.cleave.dev", renamedClaim("x", "gpu.cleave.dev"))
	refuses := true
	b.client.(*fake.Clientset).PrependReactor("*", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		return refuses, nil, errors.New("refused")
	})
	for range 5 {
		b.want("the API server does not answer", "it is not known yet which claims", true)
	}
	if n, _ := asked(b.client.(*fake.Clientset)); n != 1 {
		t.Errorf("claims were listed %d times at once, want a pause after the first", n)
	}
	refuses = false
	b.asksAgain()
	b.want("it answers", "", true, "uid-x")
	o := b.names.all()[0]
	o.idleSince = time.Now().Add(-names.Linger)
	b.want("it stays allocated", "", true, "uid-x")
	if err := b.client.ResourceV1().ResourceClaims("ns").Delete(t.Context(), "x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.asksAgain()
	b.want("it is deleted", "", true)
}

// A claim that is allocated from slices that were about to go appears when the name is about to be forgotten.
func TestOtherNames_AllocatedAtTheLastMoment(t *testing.T) {
	b := newNamesBed(t, nvidia.DriverName, "gpu.cleave.dev")
	b.want("nothing is allocated", "", true)
	if _, err := b.client.ResourceV1().ResourceClaims("ns").Create(t.Context(), renamedClaim("x", "gpu.cleave.dev"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.names.all()[0].idleSince = time.Now().Add(-names.Linger)
	b.want("it is there", "", true, "uid-x")
}

// The files of a name cannot be removed, as nobody knows whether a record is of its claims.
func TestOtherNames_NotRetired(t *testing.T) {
	b := newNamesBed(t, nvidia.DriverName, "gpu.cleave.dev")
	b.want("nothing is allocated", "", true)
	write(t, filepath.Join(b.config.nodeDir(), records.ClaimsDir, "x.json"), "{")
	b.names.all()[0].idleSince = time.Now().Add(-names.Linger)
	b.client.(*fake.Clientset).ClearActions()
	for range 5 {
		b.want("a record is corrupt", "", false)
	}
	if n, _ := asked(b.client.(*fake.Clientset)); n != 1 {
		t.Errorf("claims were listed %d times at once, want a pause after the first", n)
	}
}

// NVIDIA's own driver has its sockets and files where Cleave, in compatible mode, had its own.
func TestOtherNames_NVIDIAsDriverHasTheName(t *testing.T) {
	claim := renamedClaim("x", nvidia.DriverName)
	b := newNamesBed(t, "gpu.cleave.dev", nvidia.DriverName, claim)
	b.record(claim)
	listening := b.dir("dra-1.sock") // of a rolling update
	theirs := []string{b.dir("checkpoint.json"), listening, b.dir("dra.sock"), b.dir(hook.NVIDIA)}
	for _, path := range theirs {
		if path == listening {
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
		} else {
			write(t, path, "")
		}
	}
	socket := filepath.Join(b.config.RegistryDir, nvidia.DriverName+"-reg.sock")
	stop := register(t, socket, registrar{name: nvidia.DriverName})
	b.names.look(t.Context())
	if o := b.names.all()[0]; o.helper != nil {
		t.Error("Cleave serves a name that is NVIDIA's driver's")
	}
	stop()
	_ = os.Remove(socket)
	b.want("NVIDIA's driver is gone", "", true, "uid-x")

	o := b.names.all()[0]
	if err := errors.Join(b.engine.Named(b.other).Unprepare(t.Context(), records.Claim{Namespace: "ns", Name: "x", UID: "uid-x"}),
		b.client.ResourceV1().ResourceClaims("ns").Delete(t.Context(), "x", metav1.DeleteOptions{})); err != nil {
		t.Fatal(err)
	}
	b.want("the claim is gone", "", true)
	o.idleSince = time.Now().Add(-names.Linger)
	b.want("nothing of Cleave's is left", "", false)
	left, err := filepath.Glob(filepath.Join(b.dir(""), "*"))
	if err != nil || !slices.Equal(left, theirs) {
		t.Errorf("files are %v, %v, want %v", left, err, theirs)
	}
}

// Slices of a name without state make the name known: its plugin was uninstalled a moment ago.
func TestOtherNames_SlicesWithoutState(t *testing.T) {
	b := newNamesBed(t, "gpu.cleave.dev", nvidia.DriverName, renamedClaim("x", nvidia.DriverName))
	if err := os.RemoveAll(b.dir("")); err != nil {
		t.Fatal(err)
	}
	b.published("gpu-0") // NVIDIA's
	b.want("of NVIDIA's driver", "", false)
	b.published(renamedGPU)
	b.want("of Cleave's", "still publishes them", false)
	b.published()
	b.want("gone", "", true, "uid-x")
}

// Plugins of two names that serve different GPUs of a node are in nobody's way.
func TestOtherNames_SlicesOfOtherGPUs(t *testing.T) {
	b := newNamesBed(t, "gpu.cleave.dev", nvidia.DriverName)
	defer b.runs()()
	b.published("gpu-0000-99-00-0", "gpu-0000-99-00-0-timeslice")
	b.want("it is not known which GPUs there are", "still publishes them", false)
	session, err := simulated.Open(t.Context(), "hgx-h100")
	if err != nil {
		t.Fatal(err)
	}
	hw := &hardware{Session: session, closed: newClosedGPU()}
	defer func() { _ = hw.end(t.Context()) }()
	b.names.useHardware(hw)
	b.want("none is among them", "", false)
	b.published("gpu-0000-99-00-0", session.Node().GPUs[0].PCI.DeviceName()+"-timeslice")
	b.want("one is", "still publishes them", false)
}

func TestRetireName_KeepsWhatIsInUse(t *testing.T) {
	for name, put := range map[string]func(b *namesBed) (undo func()){
		"a plugin that runs": func(b *namesBed) func() { return b.runs() },
		"a record": func(b *namesBed) func() {
			b.record(renamedClaim("x", b.other))
			return func() { _ = os.Remove(filepath.Join(b.config.nodeDir(), records.ClaimsDir, "uid-x.json")) }
		},
		"a record that cannot be read": func(b *namesBed) func() {
			path := filepath.Join(b.config.nodeDir(), records.ClaimsDir, "uid-y.json")
			write(b.t, path, "{")
			return func() { _ = os.Remove(path) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newNamesBed(t, "gpu.cleave.dev", nvidia.DriverName)
			undo := put(b)
			if gone, err := retireName(t.Context(), &b.config, b.other); gone || err != nil {
				t.Errorf("got %t, %v", gone, err)
			}
			if _, err := os.Stat(b.dir(names.Running)); err != nil {
				t.Error("its files are gone")
			}
			undo()
			if gone, err := retireName(t.Context(), &b.config, b.other); !gone || err != nil {
				t.Errorf("got %t, %v", gone, err)
			}
			if _, err := os.Stat(b.dir("")); err == nil {
				t.Error("its files are left")
			}
		})
	}
}
