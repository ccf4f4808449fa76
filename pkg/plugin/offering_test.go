// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/mps"
	mpsapi "github.com/cleave-dra/cleave/pkg/mps/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/nvml/simulated"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/publish"
	"github.com/cleave-dra/cleave/pkg/records"
)

// fakeSupervisor answers on a socket that it has nothing in hand.
type fakeSupervisor struct {
	mpsapi.UnimplementedSupervisorServer
}

func (fakeSupervisor) Status(context.Context, *mpsapi.StatusRequest) (*mpsapi.StatusResponse, error) {
	return &mpsapi.StatusResponse{Version: "test"}, nil
}

// serve runs a supervisor on a socket until it is stopped.
func serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	mpsapi.RegisterSupervisorServer(server, fakeSupervisor{})
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	return func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// dial is a client of its own: one that found nobody waits a while before it looks again.
func dial(t *testing.T, socket string) *mps.Client {
	t.Helper()
	client, err := mps.Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}

// socketPath is short, as the kernel wants it.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mps")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "s")
}

func simulatedHardware(t *testing.T) *hardware {
	t.Helper()
	session, err := simulated.Open(t.Context(), "a30")
	if err != nil {
		t.Fatal(err)
	}
	return &hardware{Session: session, policy: &v1alpha1.NodePolicy{}, held: func() []*records.Record { return nil }}
}

// mpsDevices are the names of the devices of type mps that a node offers.
func mpsDevices(node *policy.Node) []string {
	var names []string
	for i := range node.GPUs {
		for _, s := range node.Shapes(&node.GPUs[i]) {
			if s.Share == gpu.MPS {
				names = append(names, s.Name())
			}
		}
	}
	return names
}

func TestMPSIsOfferedOnceASupervisorAnsweredAndTaintedWhileItIsAway(t *testing.T) {
	socket, hw := socketPath(t), simulatedHardware(t)
	s := &supervisor{}
	stop := func() {}
	ids := func(taints []publish.Taint) (names []string) {
		for _, taint := range taints {
			if taint.Key != publish.TaintNoMPS {
				t.Errorf("got taint %s, want %s", taint.Key, publish.TaintNoMPS)
			}
			names = append(names, taint.Device)
		}
		return names
	}
	hw.offer(nil)
	all := mpsDevices(hw.Node())
	if len(all) != 2 {
		t.Fatalf("the node offers %v by MPS, want both GPUs", all)
	}
	steps := []struct {
		name             string
		do               func()
		changed, away    bool
		offered, tainted []string
	}{
		{"nobody yet", func() {}, true, true, nil, nil},
		{"nobody still", func() {}, false, true, nil, nil},
		{"it came", func() { stop = serve(t, socket) }, true, false, all, nil},
		{"it is there", func() {}, false, false, all, nil},
		{"it went away", func() { stop() }, true, true, all, all},
		{"it is away still", func() {}, false, true, all, all},
		{"it is back", func() { stop = serve(t, socket) }, true, false, all, nil},
	}
	for _, step := range steps {
		step.do()
		s.client = dial(t, socket)
		if got := s.ask(t.Context()); got != step.changed {
			t.Errorf("%s: changed: got %t, want %t", step.name, got, step.changed)
		}
		if away := errors.Is(s.away, mps.ErrUnavailable); away != step.away || (s.away != nil) != step.away {
			t.Errorf("%s: away: got %v, want %t", step.name, s.away, step.away)
		}
		hw.offer(s.noMPS())
		if diff := cmp.Diff(step.offered, mpsDevices(hw.Node())); diff != "" {
			t.Errorf("%s: devices (-want +got):\n%s", step.name, diff)
		}
		if diff := cmp.Diff(step.tainted, ids(s.taints(hw.Node()))); diff != "" {
			t.Errorf("%s: taints (-want +got):\n%s", step.name, diff)
		}
	}
	stop()
}

func TestMPSOfClaimsOnRecordStaysOfferedThoughTheSupervisorIsAwayAtTheStart(t *testing.T) {
	hw := simulatedHardware(t)
	s := &supervisor{client: dial(t, socketPath(t)), offered: true}
	if !s.ask(t.Context()) {
		t.Error("nothing has changed, though nobody answers")
	}
	hw.offer(s.noMPS())
	if got, taints := mpsDevices(hw.Node()), s.taints(hw.Node()); len(got) != 2 || len(taints) != 2 {
		t.Errorf("got devices %v with taints %v, want both GPUs, tainted", got, taints)
	}
}

func TestWithoutASocketMPSIsOffAndSaysSo(t *testing.T) {
	hw, s := simulatedHardware(t), &supervisor{}
	s.ask(t.Context())
	hw.offer(s.noMPS())
	if got := mpsDevices(hw.Node()); got != nil {
		t.Errorf("got %v by MPS, want nothing", got)
	}
	for i, g := range hw.Node().GPUs {
		if why := hw.Node().Offers[i].NoMPS; !strings.Contains(why, "--mps-socket") {
			t.Errorf("GPU %s has no MPS because of %q, want the flag named", g.UUID, why)
		}
	}
	if s.ask(t.Context()) {
		t.Error("off at every look counts as a change")
	}
	if _, err := (noSupervisor{}).Ensure(t.Context(), mps.Request{}); !errors.Is(err, errMPSOff) {
		t.Errorf("got %v, want %v", err, errMPSOff)
	}
	// What an earlier run shared is not given back by saying so.
	for _, err := range []error{noSupervisor{}.Release(t.Context(), "gpu", "a"), noSupervisor{}.Retain(t.Context(), "gpu", "owner", []types.UID{"a"})} {
		if !errors.Is(err, errMPSOff) {
			t.Errorf("got %v, want %v", err, errMPSOff)
		}
	}
	if err := (noSupervisor{}).Retain(t.Context(), "gpu", "owner", nil); err != nil {
		t.Errorf("got %v, want nothing to give back", err)
	}
}

func TestAnOfferLeavesTheInventoryAsItIsAndLimitsOnlyWhereTheDriverDoes(t *testing.T) {
	hw := simulatedHardware(t)
	limited := hw.Session.Node().GPUs[1].PCI
	hw.limits = func(g *gpu.GPU) bool { return g.PCI == limited }
	hw.offer(nil)
	earlier := hw.Node()
	hw.offer(errors.New("no supervisor"))
	if len(mpsDevices(earlier)) != 2 || len(mpsDevices(hw.Node())) != 0 {
		t.Errorf("got %v before and %v after, want those who have the earlier offer to keep it", mpsDevices(earlier), mpsDevices(hw.Node()))
	}
	var got []policy.Enforcement
	for i := range hw.Node().GPUs {
		got = append(got, hw.Node().Offers[i].Sharing(gpu.TimeSlice).Enforcement)
	}
	if diff := cmp.Diff([]policy.Enforcement{policy.NotEnforced, policy.EnforcedPerCgroup}, got); diff != "" {
		t.Errorf("enforcement (-want +got):\n%s", diff)
	}
}

func TestTheKubeletIsToldWhichShareOfADeviceItGets(t *testing.T) {
	share := func(id string) records.Device {
		return records.Device{Request: "r", Pool: "p", Device: "gpu-0-mps", CDIDeviceIDs: []string{"c"}, Share: &records.Share{ID: id}}
	}
	device := func(id *types.UID) kubeletplugin.Device {
		return kubeletplugin.Device{Requests: []string{"r"}, PoolName: "p", DeviceName: "gpu-0-mps", CDIDeviceIDs: []string{"c"}, ShareID: id}
	}
	one, two := types.UID("one"), types.UID("two")
	whole := share("")
	whole.Share = nil
	alone := share(records.ExclusiveID)
	alone.Share.Exclusive = true
	want := []kubeletplugin.Device{device(&one), device(&two), device(nil), device(nil)}
	if diff := cmp.Diff(want, toKubelet([]records.Device{share("one"), share("two"), whole, alone})); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
}

// The scheduler forgets what devices consume that are gone, and would hand out the GPU a second time.
func TestWhatClaimsHoldStaysOfferedWhenThePolicyHasItNoMore(t *testing.T) {
	session, err := simulated.Open(t.Context(), "hgx-h100")
	if err != nil {
		t.Fatal(err)
	}
	hw := &hardware{Session: session}
	hw.policy = &v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{Tiers: []v1alpha1.Tier{v1alpha1.TierExclusive}}}}
	gpus := hw.Session.Node().GPUs
	held := []*records.Record{{Devices: []records.Device{
		{GPU: gpus[0].PCI.DeviceName(), Share: &records.Share{Kind: gpu.TimeSlice}},
		{GPU: gpus[1].PCI.DeviceName(), Share: &records.Share{Kind: gpu.MPS}},
		{GPU: gpus[2].PCI.DeviceName(), Partition: &gpu.Partition{ProfileID: 19, Placement: gpu.Placement{Start: 6, Size: 1}}},
		{GPU: gpus[3].PCI.DeviceName()},
		{GPU: gpus[4].PCI.DeviceName(), Partition: &gpu.Partition{}, AdminAccess: true},
		{GPU: gpus[5].PCI.DeviceName(), Share: &records.Share{Kind: gpu.MPS, Exclusive: true}},
	}}}
	hw.held = func() []*records.Record { return held }
	hw.offer(nil)
	want := []gpu.Tiers{{TimeSlice: true}, {MPS: true}, {}, {}, {}, {}}
	for i, w := range want {
		o := &hw.Node().Offers[i]
		if o.Withdrawn != w || (o.TimeSlice != nil) != w.TimeSlice || (o.MPS != nil) != w.MPS || (o.Partitions != nil) != (i == 2) || !o.Whole {
			t.Errorf("GPU %d: got %+v, want %+v withdrawn and the whole GPU besides", i, o, w)
		}
	}
	kept := policy.NoPlaces([]gpu.Place{{ProfileID: 19, Placement: gpu.Placement{Start: 6, Size: 1}}})
	if diff := cmp.Diff(kept, hw.Node().Offers[2].Partitions); diff != "" {
		t.Errorf("partitions of GPU 2 (-want +got):\n%s", diff)
	}
	held = nil
	hw.offer(nil)
	if o := &hw.Node().Offers[0]; o.TimeSlice != nil || o.Withdrawn != (gpu.Tiers{}) {
		t.Errorf("got %+v once nobody holds anything, want what the policy has", o)
	}
}
