package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// fakeHelper writes slices to an API server some time after it was told, as the helper does.
type fakeHelper struct {
	t      *testing.T
	client *fake.Clientset
	// calls are the devices of each slice, for each call.
	calls [][]string
	// behind is how many slices of earlier calls the API server lacked at a call.
	behind int
	err    error
	// lost makes the helper forget what it is told.
	lost bool
	want []resourceslice.Slice
	// writes are those of PublishResources: one after the other, and none of what has been overtaken.
	writes sync.Mutex
	latest atomic.Int64
}

func (h *fakeHelper) PublishResources(ctx context.Context, resources resourceslice.DriverResources) error {
	if h.err != nil {
		return h.err
	}
	h.behind += h.missing(ctx)
	h.want = resources.DeepCopy().Pools["node-1"].Slices
	var call []string
	for _, s := range h.want {
		call = append(call, wordsOf(s.Devices))
	}
	h.calls = append(h.calls, call)
	if !h.lost {
		go h.write(context.WithoutCancel(ctx), h.latest.Add(1), h.want)
	}
	return nil
}

// missing counts the slices that the API server does not have as they should be.
func (h *fakeHelper) missing(ctx context.Context) int {
	n := 0
	for i, s := range h.want {
		have, err := h.client.ResourceV1().ResourceSlices().Get(ctx, sliceName(i), metav1.GetOptions{})
		if err != nil || !resourceslice.DevicesDeepEqual(have.Spec.Devices, s.Devices) {
			n++
		}
	}
	return n
}

func sliceName(i int) string { return fmt.Sprintf("%05x-gpu.cleave.dev-node-1", i) }

func (h *fakeHelper) write(ctx context.Context, call int64, slices []resourceslice.Slice) {
	h.writes.Lock()
	defer h.writes.Unlock()
	for i, s := range slices {
		if call != h.latest.Load() {
			return
		}
		node := "node-1"
		object := &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: sliceName(i)},
			Spec:       resourceapi.ResourceSliceSpec{Driver: "gpu.cleave.dev", NodeName: &node, Devices: s.Devices},
		}
		api := h.client.ResourceV1().ResourceSlices()
		if _, err := api.Update(ctx, object, metav1.UpdateOptions{}); err != nil {
			if _, err := api.Create(ctx, object, metav1.CreateOptions{}); err != nil {
				h.t.Error(err)
			}
		}
	}
}

// wordsOf are the names of devices, with a ! on those that are tainted.
func wordsOf(devices []resourceapi.Device) string {
	words := ""
	for _, d := range devices {
		words += d.Name
		if len(d.Taints) > 0 {
			words += "!"
		}
		words += " "
	}
	return words
}

// resourcesOf are slices of devices, one per list, tainted where the name ends with a !.
func resourcesOf(lists ...[]string) resourceslice.DriverResources {
	var slices []resourceslice.Slice
	for _, list := range lists {
		var devices []resourceapi.Device
		for _, name := range list {
			d := resourceapi.Device{Name: name}
			if name[len(name)-1] == '!' {
				d.Name = name[:len(name)-1]
				d.Taints = []resourceapi.DeviceTaint{{Key: "k", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			}
			devices = append(devices, d)
		}
		slices = append(slices, resourceslice.Slice{Devices: devices})
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"node-1": {Slices: slices}}}
}

func newPublisher(t *testing.T) (*publisher, *fakeHelper) {
	h := &fakeHelper{t: t, client: fake.NewClientset()}
	return &publisher{to: h, client: h.client, driver: "gpu.cleave.dev", pool: "node-1"}, h
}

func TestSlicesChangeOneAtATimeEachWhenTheOneBeforeIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h := newPublisher(t)
		for _, r := range []resourceslice.DriverResources{
			resourcesOf([]string{"a", "b"}, []string{"c"}, []string{"d"}),
			resourcesOf([]string{"a", "b"}, []string{"c"}, []string{"d"}), // nothing new
			resourcesOf([]string{"a!", "b"}, []string{"c"}, []string{"d!"}),
			resourcesOf([]string{"a", "b"}, []string{"c!"}, []string{"d!"}),
		} {
			if err := p.update(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		want := [][]string{
			{"a b ", "c ", "d "},
			{"a! b ", "c ", "d "}, {"a! b ", "c ", "d! "},
			{"a b ", "c ", "d! "}, {"a b ", "c! ", "d! "},
		}
		if diff := cmp.Diff(want, h.calls); diff != "" {
			t.Errorf("what was published, call by call (-want +got):\n%s", diff)
		}
		if h.behind > 0 {
			t.Errorf("%d slices were not there when the next one was published", h.behind)
		}
	})
}

func TestAnotherNumberOfSlicesIsPublishedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h := newPublisher(t)
		for _, r := range []resourceslice.DriverResources{resourcesOf([]string{"a"}), resourcesOf([]string{"a!"}, []string{"b"})} {
			if err := p.update(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if diff := cmp.Diff([][]string{{"a "}, {"a! ", "b "}}, h.calls); diff != "" {
			t.Errorf("what was published, call by call (-want +got):\n%s", diff)
		}
	})
}

func TestWhatCouldNotBePublishedIsPublishedNextTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h := newPublisher(t)
		first, second := resourcesOf([]string{"a"}, []string{"b"}), resourcesOf([]string{"a"}, []string{"b!"})
		broken := errors.New("broken")
		for _, r := range []resourceslice.DriverResources{first, second} {
			h.err = broken
			if err := p.update(t.Context(), r); !errors.Is(err, broken) {
				t.Errorf("got %v, want %v", err, broken)
			}
			h.err = nil
			if err := p.update(t.Context(), r); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
		if diff := cmp.Diff([][]string{{"a ", "b "}, {"a ", "b! "}}, h.calls); diff != "" {
			t.Errorf("what was published, call by call (-want +got):\n%s", diff)
		}
	})
}

func TestASliceThatDoesNotArriveHoldsUpNothingForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h := newPublisher(t)
		if err := p.update(t.Context(), resourcesOf([]string{"a"}, []string{"b"})); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		h.lost = true
		if err := p.update(t.Context(), resourcesOf([]string{"a!"}, []string{"b!"})); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([][]string{{"a ", "b "}, {"a! ", "b "}, {"a! ", "b! "}}, h.calls); diff != "" {
			t.Errorf("what was published, call by call (-want +got):\n%s", diff)
		}
	})
}

// asked counts the times that the API server was asked for slices.
func (h *fakeHelper) asked() (n int) {
	for _, a := range h.client.Actions() {
		if a.GetVerb() == "list" {
			n++
		}
	}
	return n
}

func TestAChangeOfOneSliceIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h := newPublisher(t)
		if err := p.update(t.Context(), resourcesOf([]string{"a", "b"}, []string{"c"})); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		h.lost = true
		start := time.Now()
		for _, order := range [][]string{{"b", "a"}, {"a", "b"}, {"b", "a"}} {
			if err := p.update(t.Context(), resourcesOf(order, []string{"c"})); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took > 0 || h.asked() > 0 {
			t.Errorf("three orders of one slice took %s and asked the API server %d times, want nothing", took, h.asked())
		}
		h.lost = false
		p.refresh(t.Context()) // it arrives
		synctest.Wait()
		if err := p.update(t.Context(), resourcesOf([]string{"b", "a"}, []string{"c!"})); err != nil {
			t.Fatal(err)
		}
		want := [][]string{{"a b ", "c "}, {"b a ", "c "}, {"a b ", "c "}, {"b a ", "c "}, {"b a ", "c "}, {"b a ", "c! "}}
		if diff := cmp.Diff(want, h.calls); diff != "" {
			t.Errorf("what was published, call by call (-want +got):\n%s", diff)
		}
		if h.asked() != 1 {
			t.Errorf("the API server was asked %d times before another slice changed, want once", h.asked())
		}
	})
}
