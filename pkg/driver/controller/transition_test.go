// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/driver/publisher"
)

// checkSlices fails unless slices are ones that the helper takes, and have all devices that are allocated.
func checkSlices(slices []nodeslices.Slice, allocated []string) error {
	sets, devices := map[string]bool{}, map[string]bool{}
	for _, s := range slices {
		for _, c := range s.SharedCounters {
			if sets[c.Name] {
				return fmt.Errorf("counters %s occur twice", c.Name)
			}
			sets[c.Name] = true
		}
	}
	for _, s := range slices {
		for _, d := range s.Devices {
			if devices[d.Name] {
				return fmt.Errorf("device %s occurs twice", d.Name)
			}
			devices[d.Name] = true
			for _, c := range d.ConsumesCounters {
				if !sets[c.CounterSet] {
					return fmt.Errorf("device %s consumes counters of %s, which are missing", d.Name, c.CounterSet)
				}
			}
		}
	}
	for _, name := range allocated {
		if !devices[name] {
			return fmt.Errorf("device %s is allocated and missing", name)
		}
	}
	return nil
}

// apiServer is a fake one that checks the slices after each write.
type apiServer struct {
	*fake.Clientset
	mu        sync.Mutex
	inventory *gpu.Node
	allocated []string
	writes    int
	err       error
}

func newAPIServer(t *testing.T, inventory *gpu.Node) *apiServer {
	a := &apiServer{inventory: inventory, Clientset: fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "1"}})}
	names := 0
	a.PrependReactor("*", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if action.GetVerb() == "create" { // the fake one makes no names
			slice := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
			names++
			slice.Name = fmt.Sprintf("%s%d", slice.GenerateName, names)
		}
		handled, object, err := clienttesting.ObjectReaction(a.Tracker())(action)
		if verb := action.GetVerb(); verb != "list" && verb != "get" {
			a.check(t)
		}
		return handled, object, err
	})
	return a
}

// check looks at the slices as the scheduler does: it goes by those of the newest generation, and allocates nothing while they
// are not as many as they say.
func (a *apiServer) check(t *testing.T) {
	a.writes++
	objects, err := a.Tracker().List(resourceapi.SchemeGroupVersion.WithResource("resourceslices"), resourceapi.SchemeGroupVersion.WithKind("ResourceSlice"), "")
	if err != nil {
		t.Error(err)
		return
	}
	var pool []resourceapi.ResourceSlice
	for _, s := range objects.(*resourceapi.ResourceSliceList).Items {
		if len(pool) > 0 && s.Spec.Pool.Generation > pool[0].Spec.Pool.Generation {
			pool = nil
		}
		if len(pool) == 0 || s.Spec.Pool.Generation == pool[0].Spec.Pool.Generation {
			pool = append(pool, s)
		}
	}
	if len(pool) == 0 || int64(len(pool)) != pool[0].Spec.Pool.ResourceSliceCount {
		return
	}
	var have []nodeslices.Slice
	for _, s := range pool {
		have = append(have, nodeslices.Slice{Devices: s.Spec.Devices, SharedCounters: s.Spec.SharedCounters})
	}
	a.err = errors.Join(a.err, checkSlices(have, a.allocated), checkCounted(have, a.inventory))
}

// seen are the slices, as the plugin watches them.
func (a *apiServer) seen() []publisher.Seen {
	objects, err := a.Tracker().List(resourceapi.SchemeGroupVersion.WithResource("resourceslices"), resourceapi.SchemeGroupVersion.WithKind("ResourceSlice"), "")
	if err != nil {
		return nil
	}
	var seen []publisher.Seen
	for _, s := range objects.(*resourceapi.ResourceSliceList).Items {
		if own, ours := publisher.SeenOf(&s, "gpu.cleave.dev", "node-1"); ours {
			seen = append(seen, own)
		}
	}
	return seen
}

// controller hands slices to the controller that the helper has.
type controller struct {
	*resourceslice.Controller
	calls *int
}

func (c controller) PublishResources(_ context.Context, resources resourceslice.DriverResources) error {
	*c.calls++
	c.Update(&resources)
	return nil
}

// publisher runs one that writes with the helper's controller until the test ends.
func (a *apiServer) publisher(t *testing.T, wake chan struct{}, calls *int, handle func(context.Context, error, string),
	failed func() time.Time) *publisher.Publisher {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c, err := resourceslice.StartController(ctx, resourceslice.Options{
		DriverName: "gpu.cleave.dev", KubeClient: a, Owner: &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: "node-1", UID: "1"},
		Resources: &resourceslice.DriverResources{}, ErrorHandler: handle,
	})
	if err != nil {
		t.Fatal(err)
	}
	p := publisher.NewPublisher(publisher.Options{
		Writer: controller{c, calls}, Pool: "node-1", Seen: a.seen, Wake: wake, WriteFailed: failed,
		Published: func(error) {}, Deleted: func(int, int) {}, KubeletRegistered: func() time.Time { return time.Time{} },
	})
	var wg sync.WaitGroup
	wg.Go(func() { p.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		c.Stop()
		wg.Wait()
	})
	return p
}

// plannedChange is what is to be published, and the devices that are allocated before and after.
type plannedChange struct {
	want      []nodeslices.Slice
	allocated []string
}

// plannedChanges leads a node through random observations.
func plannedChanges(t *testing.T, seed uint64, steps int) ([]plannedChange, *gpu.Node) {
	t.Helper()
	b := newRandomBed(t, seed)
	var changes []plannedChange
	for range steps {
		b.change()
		b.step(b.aspects)
		if b.plan.Slices != nil {
			var allocated []string
			for _, s := range b.allocated {
				allocated = append(allocated, s.Name())
			}
			b.published = b.plan.Slices
			changes = append(changes, plannedChange{b.plan.Slices, allocated})
		}
		b.claim()
	}
	return changes, b.Inventory
}

// No write of the helper leaves a pool that lacks what is allocated, or that admits what cannot be allocated together.
func TestPublisher_Transitions(t *testing.T) {
	changes, inventory := plannedChanges(t, 3, 15)
	synctest.Test(t, func(t *testing.T) {
		a := newAPIServer(t, inventory)
		wake, calls := make(chan struct{}, 1), 0
		p := a.publisher(t, wake, &calls, func(_ context.Context, err error, msg string) { t.Errorf("%s: %v", msg, err) },
			func() time.Time { return time.Time{} })
		for _, change := range changes {
			a.mu.Lock()
			a.allocated = change.allocated
			a.mu.Unlock()
			p.Want(change.want)
			for range 20 { // as its slices arrive
				signalTo(wake)
				synctest.Wait()
				<-time.After(time.Millisecond)
			}
			time.Sleep(time.Second) //nolint:forbidigo // of the bubble
			synctest.Wait()
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.err != nil {
			t.Error(a.err)
		}
		if a.writes < len(changes) {
			t.Errorf("%d writes for %d changes: the helper does not follow", a.writes, len(changes))
		}
		if calls <= len(changes) {
			t.Error("no change was made one slice at a time, which shows nothing of those")
		}
	})
}

// An API server that was away for 25 minutes has what was lost meanwhile within two, though the helper by itself tries up to
// 1000 s later.
func TestPublisher_Outage(t *testing.T) {
	const away, backWithin = 25 * time.Minute, rewriteAtMost
	synctest.Test(t, func(t *testing.T) {
		a := newAPIServer(t, &gpu.Node{})
		var down atomic.Bool
		a.PrependReactor("*", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
			return down.Load() && action.GetVerb() == "update", nil, errors.New("no answer")
		})
		var failed atomic.Pointer[time.Time]
		failed.Store(&time.Time{})
		wake, calls := make(chan struct{}, 1), 0
		p := a.publisher(t, wake, &calls, func(context.Context, error, string) {
			now := time.Now()
			failed.Store(&now)
		}, func() time.Time { return *failed.Load() })
		wait := func(d time.Duration) bool {
			<-time.After(d)
			signalTo(wake) // as its watch does
			synctest.Wait()
			return p.Arrived()
		}
		device := resourceapi.Device{Name: "a"}
		p.Want([]nodeslices.Slice{{Devices: []resourceapi.Device{device}}})
		if !wait(time.Second) {
			t.Fatal("the first slice has not arrived")
		}
		down.Store(true)
		device.Taints = []resourceapi.DeviceTaint{{Key: "k", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		p.Want([]nodeslices.Slice{{Devices: []resourceapi.Device{device}}})
		if wait(away) {
			t.Fatal("the taint has arrived at an API server that does not answer")
		}
		down.Store(false)
		if !wait(backWithin) {
			t.Errorf("the taint has not arrived %s after the API server was back", backWithin)
		}
	})
}

func signalTo(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
