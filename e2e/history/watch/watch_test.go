// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/cleave-dra/cleave/e2e/history"
	"github.com/cleave-dra/cleave/pkg/sim"
)

const (
	driver  = "gpu.example.com"
	theNode = "node-1"
)

// record starts a recorder of some sources.
func record(t *testing.T, of ...history.Source) *history.Recorder {
	t.Helper()
	r, err := history.Record(t.Context(), history.Sources{File: filepath.Join(t.TempDir(), "history"), Of: of})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// until waits for what the other goroutines do, and fails the test with its context.
func until(t *testing.T, r *history.Recorder, done func([]history.Fact) bool) []history.Fact {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		facts := factsOf(t, r)
		if done(facts) {
			return facts
		}
		select {
		case <-ctx.Done():
			t.Fatalf("recorded: %+v", facts)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func factsOf(t *testing.T, r *history.Recorder) []history.Fact {
	t.Helper()
	h, err := r.SoFar()
	if err != nil {
		t.Fatal(err)
	}
	var facts []history.Fact
	for _, e := range h.Events {
		switch f := e.Fact.(type) {
		case history.Start:
		case history.Gap:
			f.From = 0
			facts = append(facts, f)
		default:
			facts = append(facts, f)
		}
	}
	return facts
}

func claimObject(uid, version, device string, pods ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Name: "claim-" + uid, Namespace: "ns", ResourceVersion: version}}
	if device != "" {
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
			{Request: "r", Driver: driver, Pool: theNode, Device: device, ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{driver + "/cores": resource.MustParse("50")}},
			{Request: "r", Driver: "nic.example.com", Pool: theNode, Device: "nic-0"},
		}}}
	}
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", UID: types.UID(p)})
	}
	return c
}

func claimFact(uid, device string, pods ...string) history.Claim {
	c := history.Claim{UID: uid, Namespace: "ns", Name: "claim-" + uid, State: history.ClaimFree, Pods: pods}
	if device != "" {
		c.State = history.ClaimAllocated
		c.Devices = []history.Allocated{{Request: "r", Device: device, Consumed: map[string]int64{"cores": 50}}}
	}
	return c
}

// apiServer is one whose watches a test ends.
type apiServer struct {
	lists   chan *resourceapi.ResourceClaimList
	watches chan *apiwatch.FakeWatcher
	refuse  atomic.Pointer[error]
	from    chan string
}

func (s *apiServer) Run(ctx context.Context, r *history.Recorder, ready func()) error {
	states := newClaimStates(r, API{Driver: driver, Node: theNode})
	f := follower{
		recorder: r, changed: states.changed, deleted: states.deleted,
		list: func(ctx context.Context) (runtime.Object, error) {
			select {
			case l := <-s.lists:
				return l, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
		watch: func(ctx context.Context, from string) (apiwatch.Interface, error) {
			if err := s.refuse.Swap(nil); err != nil {
				return nil, *err
			}
			s.from <- from
			select {
			case w := <-s.watches:
				return w, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	}
	return f.run(ctx, ready)
}

func listOf(version string, claims ...*resourceapi.ResourceClaim) *resourceapi.ResourceClaimList {
	l := &resourceapi.ResourceClaimList{ListMeta: metav1.ListMeta{ResourceVersion: version}}
	for _, c := range claims {
		l.Items = append(l.Items, *c)
	}
	return l
}

// checkFacts waits for facts and ends the recording.
func checkFacts(t *testing.T, r *history.Recorder, want []history.Fact) {
	t.Helper()
	got := until(t, r, func(facts []history.Fact) bool { return len(facts) >= len(want) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
	if _, err := r.Stop(); err != nil {
		t.Error(err)
	}
}

func TestFollower(t *testing.T) {
	s := &apiServer{lists: make(chan *resourceapi.ResourceClaimList, 2), watches: make(chan *apiwatch.FakeWatcher), from: make(chan string, 10)}
	s.lists <- listOf("10", claimObject("a", "9", "gpu-0", "p"), claimObject("b", "8", ""))
	r := record(t, s)
	next := func(wantFrom string) *apiwatch.FakeWatcher {
		t.Helper()
		if from := <-s.from; from != wantFrom {
			t.Errorf("a watch from version %s, want %s", from, wantFrom)
		}
		w := apiwatch.NewFake()
		s.watches <- w
		return w
	}
	w := next("10")
	w.Modify(claimObject("b", "11", "gpu-1"))
	w.Modify(claimObject("b", "12", "gpu-1")) // nothing that matters
	w.Stop()                                  // the API server is killed
	w = next("12")
	w.Delete(claimObject("a", "13", "gpu-0"))
	until(t, r, func(facts []history.Fact) bool { return facts[len(facts)-1] == history.Gap{Source: history.SourceAPI} })
	expired := error(apierrors.NewResourceExpired("too old"))
	s.refuse.Store(&expired)
	s.lists <- listOf("30", claimObject("c", "29", "gpu-2"))
	w.Stop()
	next("30")
	want := []history.Fact{
		claimFact("a", "gpu-0", "p"), claimFact("b", "gpu-1"), gone(claimFact("a", "gpu-0")), history.Gap{Source: history.SourceAPI},
		claimFact("c", "gpu-2"), gone(claimFact("b", "gpu-1")), history.Gap{Source: history.SourceAPI},
	}
	checkFacts(t, r, want)
}

func gone(c history.Claim) history.Claim {
	c.State = history.ClaimDeleted
	return c
}

func TestSimulator(t *testing.T) {
	root := t.TempDir()
	create := func() sim.MIG {
		t.Helper()
		node, err := sim.Create(root, "hgx-h100", sim.WithoutDeviceNodes(), sim.WithForce())
		if err == nil {
			err = node.Init()
		}
		if err != nil {
			t.Fatal(err)
		}
		mig := node.Device(0).MIG()
		if _, err := mig.SetMIGMode(true); err != nil {
			t.Fatal(err)
		}
		return mig
	}
	partition := func(mig sim.MIG, profile int) *sim.GPUInstance {
		t.Helper()
		gi, err := mig.CreateGPUInstance(profile)
		if err != nil {
			t.Fatal(err)
		}
		return gi
	}
	mig := create()
	first := partition(mig, 9)
	r := record(t, Simulator{Root: root, Program: "nobody"})
	partition(mig, 19)
	if err := first.Destroy(); err != nil {
		t.Fatal(err)
	}
	until(t, r, func(facts []history.Fact) bool { return len(facts) == 3 })
	mig = create()
	until(t, r, func(facts []history.Fact) bool {
		return slices.Contains(facts, history.Fact(history.Gap{Source: history.SourceHardware}))
	})
	partition(mig, 9)
	h, err := r.Stop() // what was written before is recorded
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range h.Events {
		switch f := e.Fact.(type) {
		case history.Gap:
			got = append(got, "gap")
		case history.Hardware:
			if f.Partition == nil { // the MIG mode of the second node may change before its journal begins, or after
				continue
			}
			known := "known"
			if f.By == "" {
				known = "unknown"
			}
			got = append(got, string(f.Change)+" by "+known)
		}
	}
	want := []string{
		"partition-created by unknown", "partition-created by known", "partition-destroyed by known", "gap", "partition-created by known",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// containerRuntime is one whose streams a test ends.
type containerRuntime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runs    atomic.Pointer[[]*runtimeapi.Container]
	streams chan chan *runtimeapi.ContainerEventResponse
}

func (c *containerRuntime) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: *c.runs.Load()}, nil
}

func (c *containerRuntime) GetContainerEvents(_ *runtimeapi.GetEventsRequest, s runtimeapi.RuntimeService_GetContainerEventsServer) error {
	var events chan *runtimeapi.ContainerEventResponse
	select {
	case events = <-c.streams:
	case <-s.Context().Done():
		return s.Context().Err()
	}
	for e := range events {
		if err := s.Send(e); err != nil {
			return err
		}
	}
	return errors.New("it breaks")
}

func TestRuntime(t *testing.T) {
	c := &containerRuntime{streams: make(chan chan *runtimeapi.ContainerEventResponse, 1)}
	running := func(ids ...string) {
		var list []*runtimeapi.Container
		for _, id := range ids {
			list = append(list, &runtimeapi.Container{
				Id: id, Metadata: &runtimeapi.ContainerMetadata{Name: "name-" + id}, State: runtimeapi.ContainerState_CONTAINER_RUNNING,
				Labels: map[string]string{"io.kubernetes.pod.uid": "pod-" + id},
			})
		}
		c.runs.Store(&list)
	}
	running("a")
	socket := filepath.Join(t.TempDir(), "cri.sock")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, c)
	go func() { _ = server.Serve(listener) }() // until the server stops
	t.Cleanup(server.Stop)

	first := make(chan *runtimeapi.ContainerEventResponse)
	c.streams <- first
	r := record(t, Runtime{Socket: socket})
	ago := time.Duration(0)
	send := func(kind runtimeapi.ContainerEventType, id string) {
		first <- &runtimeapi.ContainerEventResponse{
			ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().Add(-ago).UnixNano(),
			PodSandboxStatus:   &runtimeapi.PodSandboxStatus{Id: "sandbox", Metadata: &runtimeapi.PodSandboxMetadata{Uid: "pod-" + id}},
			ContainersStatuses: []*runtimeapi.ContainerStatus{{Id: id, Metadata: &runtimeapi.ContainerMetadata{Name: "name-" + id}}},
		}
	}
	const started, stopped = runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT
	ago = time.Hour // what the runtime kept of before
	send(started, "z")
	send(stopped, "z")
	ago = 0
	send(started, "sandbox")
	send(started, "b")
	send(started, "a") // known
	send(stopped, "a")
	send(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, "a")
	fact := func(id string, state history.ContainerState) history.Container {
		return history.Container{ID: id, State: state, Name: "name-" + id, Pod: "pod-" + id}
	}
	want := []history.Fact{fact("a", history.ContainerStarted), fact("b", history.ContainerStarted), fact("a", history.ContainerEnded)}
	until(t, r, func(facts []history.Fact) bool { return len(facts) == len(want) })
	running("c")
	close(first)
	c.streams <- make(chan *runtimeapi.ContainerEventResponse)
	want = append(want, fact("c", history.ContainerStarted), fact("b", history.ContainerEnded), history.Gap{Source: history.SourceRuntime})
	checkFacts(t, r, want)
}
