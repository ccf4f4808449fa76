// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
)

// fakeHelper writes slices to an API server some time after it was given them, as the helper does.
type fakeHelper struct {
	// calls are the devices of each slice, for each call.
	calls [][]string
	// behind is how many slices of earlier calls the API server lacked at a call.
	behind int
	err    error
	// lost makes the helper forget what it is given. blocked makes it wait until it is closed.
	lost    bool
	blocked chan struct{}
	want    []nodeslices.Slice
	// outcomes are what the publisher reported, events the slices that it found deleted.
	outcomes   []error
	events     []string
	registered time.Time
	// failed is when a write failed.
	failed time.Time
	// state guards what is above; see locked.
	state sync.Mutex

	mu   sync.Mutex
	seen []Seen
	wake chan struct{}
}

func (h *fakeHelper) PublishResources(_ context.Context, resources resourceslice.DriverResources) error {
	if h.blocked != nil {
		<-h.blocked
	}
	h.state.Lock()
	defer h.state.Unlock()
	if h.err != nil {
		return h.err
	}
	for i, s := range h.want {
		if !hasSlice(h.list(), i, contentOf(s.Devices, s.SharedCounters)) {
			h.behind++
		}
	}
	h.want = nil
	for _, s := range resources.DeepCopy().Pools["node-1"].Slices {
		h.want = append(h.want, nodeslices.Slice{Devices: s.Devices, SharedCounters: s.SharedCounters})
	}
	var call []string
	for _, s := range h.want {
		call = append(call, wordsOf(s.Devices))
	}
	h.calls = append(h.calls, call)
	if !h.lost {
		want := h.want
		go func() {
			<-time.After(time.Millisecond)
			h.set(want)
		}()
	}
	return nil
}

// set is what the API server has from now on.
func (h *fakeHelper) set(want []nodeslices.Slice, without ...int) {
	var seen []Seen
	for i, s := range want {
		if !slices.Contains(without, i) {
			seen = append(seen, Seen{index: i, count: len(want), content: contentOf(s.Devices, s.SharedCounters)})
		}
	}
	h.mu.Lock()
	h.seen = seen
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

func (h *fakeHelper) list() []Seen {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen
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

// slicesOf are slices of devices, one per list, tainted where the name ends with a !.
func slicesOf(lists ...[]string) []nodeslices.Slice {
	var slices []nodeslices.Slice
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
		slices = append(slices, nodeslices.Slice{Devices: devices})
	}
	return slices
}

// locked does what needs the lock, and orders what a test did before it, and what the publisher did, before what either does next.
func (h *fakeHelper) locked(do func()) {
	h.state.Lock()
	defer h.state.Unlock()
	do()
}

// runPublisher runs a publisher until the test ends, in a bubble. settle lets time of the bubble pass.
func runPublisher(t *testing.T) (p *Publisher, h *fakeHelper, settle func(time.Duration)) {
	h = &fakeHelper{wake: make(chan struct{}, 1)}
	p = NewPublisher(Options{
		Writer: h, Pool: "node-1", Seen: h.list, Wake: h.wake,
		WriteFailed: func() (at time.Time) { h.locked(func() { at = h.failed }); return at },
		Published:   func(err error) { h.locked(func() { h.outcomes = append(h.outcomes, err) }) },
		Deleted: func(missing, all int) {
			h.locked(func() { h.events = append(h.events, fmt.Sprintf("%d of %d", missing, all)) })
		},
		KubeletRegistered: func() (at time.Time) { h.locked(func() { at = h.registered }); return at },
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { p.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return p, h, func(d time.Duration) {
		h.locked(func() {})
		<-time.After(d)
		synctest.Wait()
		h.locked(func() {})
	}
}

func (h *fakeHelper) wantCalls(t *testing.T, want ...[]string) {
	t.Helper()
	if diff := cmp.Diff(want, h.calls); diff != "" {
		t.Errorf("what was published, call by call (-want +got):\n%s", diff)
	}
}

// What is published, call by call, where a second passes after the first slices that are wanted, and a pause after each of the others.
func TestPublisher_Calls(t *testing.T) {
	for name, tt := range map[string]struct {
		want  [][]nodeslices.Slice
		lost  bool // all but the first
		pause time.Duration
		calls [][]string
	}{
		"one slice at a time": {[][]nodeslices.Slice{
			slicesOf([]string{"a", "b"}, []string{"c"}, []string{"d"}),
			slicesOf([]string{"a", "b"}, []string{"c"}, []string{"d"}), // nothing new
			slicesOf([]string{"a!", "b"}, []string{"c"}, []string{"d!"}),
			slicesOf([]string{"a", "b"}, []string{"c!"}, []string{"d!"}),
		}, false, time.Second, [][]string{{"a b ", "c ", "d "}, {"a! b ", "c ", "d "}, {"a! b ", "c ", "d! "}, {"a b ", "c ", "d! "}, {"a b ", "c! ", "d! "}}},
		"another number of slices": {[][]nodeslices.Slice{slicesOf(), slicesOf([]string{"a"}), slicesOf([]string{"a!"}, []string{"b"})},
			false, time.Second, [][]string{nil, {"a "}, {"a! ", "b "}}},
		"a slice that does not arrive": {[][]nodeslices.Slice{slicesOf([]string{"a"}, []string{"b"}), slicesOf([]string{"a!"}, []string{"b!"})},
			true, syncTimeout, [][]string{{"a ", "b "}, {"a! ", "b "}, {"a! ", "b! "}}},
		"one slice is not waited for": {[][]nodeslices.Slice{
			slicesOf([]string{"a", "b"}, []string{"c"}), slicesOf([]string{"b", "a"}, []string{"c"}),
			slicesOf([]string{"a", "b"}, []string{"c"}), slicesOf([]string{"b", "a"}, []string{"c"}),
		}, true, 0, [][]string{{"a b ", "c "}, {"b a ", "c "}, {"a b ", "c "}, {"b a ", "c "}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, h, settle := runPublisher(t)
				pause := time.Second
				for _, want := range tt.want {
					p.Want(want)
					settle(pause)
					h.lost, pause = tt.lost, tt.pause
				}
				h.wantCalls(t, tt.calls...)
				if !tt.lost && h.behind > 0 {
					t.Errorf("%d slices were not there when the next one was published", h.behind)
				}
			})
		})
	}
}

func TestPublisher_TriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h, settle := runPublisher(t)
		h.err = errors.New("broken")
		p.Want(slicesOf([]string{"a"}, []string{"b"}))
		settle(100 * time.Millisecond)
		h.err = nil
		settle(publishRetry)
		h.wantCalls(t, []string{"a ", "b "})
		if n := len(h.outcomes); n < 2 || h.outcomes[0] == nil || h.outcomes[n-1] != nil {
			t.Errorf("got outcomes %v, want the first to fail and the last not to", h.outcomes)
		}
	})
}

// The helper waits up to 1000 s after a write that failed: once the API server is back, slices are not kept from it for so long.
func TestPublisher_AfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h, settle := runPublisher(t)
		before, lost := []string{"a ", "b "}, []string{"a! ", "b "}
		p.Want(slicesOf([]string{"a"}, []string{"b"}))
		settle(time.Second)
		h.lost = true
		p.Want(slicesOf([]string{"a!"}, []string{"b"}))
		settle(time.Minute)
		h.wantCalls(t, before, lost) // it may still be on its way
		for _, back := range []bool{false, false, true} {
			h.lost, h.failed = !back, time.Now()
			settle(rewriteAfter + time.Second)
		}
		h.wantCalls(t, before, lost, lost, lost, lost)
		if !p.Arrived() {
			t.Error("the slices have not arrived though the API server is back")
		}
		settle(time.Hour)
		h.wantCalls(t, before, lost, lost, lost, lost)
	})
}

// What is wanted has arrived once the API server has all of it, and not while it has what was wanted before.
func TestPublisher_Arrived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h, settle := runPublisher(t)
		var arrivals atomic.Int32
		p.options.Arrived = func() { arrivals.Add(1) }
		check := func(when string, want bool, times int32) {
			t.Helper()
			if got, n := p.Arrived(), arrivals.Load(); got != want || n != times {
				t.Errorf("%s: arrived %t, %d times, want %t, %d times", when, got, n, want, times)
			}
		}
		check("before anything is wanted", false, 0)
		p.Want(slicesOf([]string{"a"}, []string{"b"}))
		check("just wanted", false, 0)
		settle(time.Second)
		check("published", true, 1)
		h.lost = true
		p.Want(slicesOf([]string{"a!"}, []string{"b!"}))
		check("just withdrawn", false, 1)
		settle(time.Minute)
		check("while the API server does not get it", false, 1)
		h.set(h.want, 0)
		settle(time.Second)
		check("with half of it", false, 1)
		h.set(h.want)
		settle(time.Second)
		check("with all of it", true, 2)
		p.Want(slicesOf([]string{"a!"}, []string{"b!"}))
		settle(time.Second)
		check("the same again", true, 3)
	})
}

// What waits for the slices before it was not handed over, and each that arrives is progress.
func TestPublisher_Handed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h, settle := runPublisher(t)
		p.Want(slicesOf([]string{"a"}, []string{"b"}, []string{"c"}))
		settle(time.Second)
		h.lost = true
		p.Want(slicesOf([]string{"a!"}, []string{"b!"}, []string{"c!"}))
		start := time.Now()
		for _, step := range []struct {
			after, last time.Duration
			all         bool
		}{{0, -time.Second, false}, {1, 0, false}, {2*syncTimeout - 1, syncTimeout, false}, {2 * syncTimeout, 2 * syncTimeout, true}, {time.Hour, 2 * syncTimeout, true}} {
			if wait := step.after - time.Since(start); wait > 0 {
				settle(wait)
			}
			if all, last := p.Handed(); all != step.all || last.Sub(start).Round(time.Second) != step.last {
				t.Errorf("after %s: all were handed over %t, progress at %s; want %t, %s", step.after, all, last.Sub(start), step.all, step.last)
			}
		}
		h.set(h.want, 0)
		settle(time.Second)
		if _, last := p.Handed(); time.Since(last) != time.Second {
			t.Errorf("progress %s ago, want it when slices arrived", time.Since(last))
		}
	})
}

// Nobody waits for the API server who wants slices, and those that were overtaken meanwhile are not published.
func TestPublisher_LatestWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h, settle := runPublisher(t)
		h.blocked = make(chan struct{})
		start := time.Now()
		for _, device := range []string{"a", "a!", "b", "c"} {
			p.Want(slicesOf([]string{device}, []string{"x"}))
			synctest.Wait()
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("want took %s", took)
		}
		close(h.blocked)
		settle(time.Second)
		h.wantCalls(t, []string{"a ", "x "}, []string{"c ", "x "})
	})
}

func TestPublisher_DeletedSlices(t *testing.T) {
	all := slicesOf([]string{"a"}, []string{"b"}, []string{"c"})
	other := slicesOf([]string{"z"}, []string{"b"}, []string{"c"})
	for name, tt := range map[string]struct {
		delete     func(h *fakeHelper)
		calls      int // within two seconds
		later      int // within a minute
		registered time.Duration
		events     []string
	}{
		"all":                          {delete: func(h *fakeHelper) { h.set(nil) }, calls: 1, later: 1, registered: -time.Hour, events: []string{"3 of 3"}},
		"one":                          {delete: func(h *fakeHelper) { h.set(all, 1) }, calls: 1, later: 1, registered: -time.Hour, events: []string{"1 of 3"}},
		"by a kubelet that starts":     {delete: func(h *fakeHelper) { h.set(nil) }, calls: 1, later: 1, registered: 2 * time.Second},
		"none":                         {delete: func(h *fakeHelper) { h.set(all) }},
		"replaced by another plugin's": {delete: func(h *fakeHelper) { h.set(other, 1) }},
		"and the helper does not know": {
			delete: func(h *fakeHelper) { h.lost = true; h.set(nil) }, calls: 2, later: 6, registered: -time.Hour, events: []string{"3 of 3"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, h, settle := runPublisher(t)
				p.Want(all)
				settle(time.Minute)
				before := len(h.calls)
				h.registered = time.Now().Add(tt.registered)
				tt.delete(h)
				settle(2 * time.Second)
				if got := len(h.calls) - before; got != tt.calls {
					t.Errorf("published %d times within two seconds, want %d", got, tt.calls)
				}
				settle(58 * time.Second)
				if got := len(h.calls) - before; got != tt.later {
					t.Errorf("published %d times within a minute, want %d", got, tt.later)
				}
				if diff := cmp.Diff(tt.events, h.events); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
				if !h.lost && tt.calls > 0 && len(h.list()) != 3 {
					t.Errorf("%d slices are there, want 3", len(h.list()))
				}
			})
		})
	}
}
