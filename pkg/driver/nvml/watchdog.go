// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// How long NVML calls may take before they count as hanging.
const (
	// readTimeout bounds queries. They take milliseconds on an idle node, but O(10 s) while partitions of all GPUs are created at once:
	// calls for all GPUs share a driver lock (dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/nvlib.go).
	readTimeout = 30 * time.Second
	// changeTimeout bounds calls that change or initialise a GPU. The driver initialises a GPU at its first handle
	// (nvmlDeviceGetHandleByIndex_v2), which takes seconds. It is below the kubelet's timeout of 45 s.
	changeTimeout = 30 * time.Second
)

// watchdog bounds the calls about one GPU. NVML calls cannot be cancelled, so each runs in its own goroutine, one at a
// time: a hanging GPU blocks one goroutine, however often it is queried.
type watchdog struct {
	// slot contains a value while a call runs.
	slot chan struct{}

	mu sync.Mutex
	// what names the running call.
	what            string
	since, deadline time.Time
	// late is set once the running call has missed its deadline.
	late bool

	// use is that of calls that read how the GPU is used: nothing else waits for them, and one that hangs makes the GPU no worse.
	use *watchdog
}

func newWatchdog() *watchdog { return &watchdog{slot: make(chan struct{}, 1)} }

// bounded runs f unless an earlier call hangs, and stops waiting for it after limit with gpu.ErrHangs. f then keeps
// running, and no other call starts before it returns. If changes is set, the end of ctx does not end the wait: the
// outcome of a change must be known.
func bounded[T any](ctx context.Context, w *watchdog, what string, limit time.Duration, changes bool, f func() (T, error)) (T, error) {
	var none T
	if err := w.begin(ctx, what, limit); err != nil {
		return none, err
	}
	type answer struct {
		value    T
		err      error
		panicked any
	}
	answers := make(chan answer, 1)
	go func() {
		var a answer
		defer func() { // the caller panics instead
			a.panicked = recover()
			w.end(ctx)
			answers <- a
		}()
		a.value, a.err = f()
	}()
	take := func(a answer) (T, error) {
		if a.panicked != nil {
			panic(a.panicked)
		}
		return a.value, a.err
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	over := ctx.Done()
	if changes {
		over = nil
	}
	select {
	case a := <-answers:
		return take(a)
	case <-over:
		return none, fmt.Errorf("%s: %w", what, ctx.Err())
	case <-timer.C:
	}
	select {
	case a := <-answers: // it returned just in time
		return take(a)
	default:
	}
	w.expire(ctx)
	if err := w.hangs(); err != nil {
		return none, err
	}
	return none, fmt.Errorf("%s took more than %s: %w", what, limit, gpu.ErrHangs)
}

// begin waits for the running call and takes its slot, in order of arrival, so that a caller with many calls in a row starves no
// other. It fails at once if that call hangs.
func (w *watchdog) begin(ctx context.Context, what string, limit time.Duration) error {
	for begun := false; !begun; {
		select {
		case w.slot <- struct{}{}:
			begun = true
		default:
			var err error
			if begun, err = w.await(ctx); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.what, w.since, w.deadline, w.late = what, time.Now(), time.Now().Add(limit), false
	return nil
}

// await waits for the slot, which it takes, or for the deadline of the running call. An error says that waiting is useless.
func (w *watchdog) await(ctx context.Context) (taken bool, err error) {
	if err := w.hangs(); err != nil {
		return false, err
	}
	w.mu.Lock()
	left := time.Until(w.deadline)
	w.mu.Unlock()
	timer := time.NewTimer(max(left, time.Millisecond))
	defer timer.Stop()
	select {
	case w.slot <- struct{}{}: // a channel serves those that wait in order
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	case <-timer.C:
		w.expire(ctx) // its caller may have stopped waiting before the deadline
		return false, nil
	}
}

// end records that the running call has returned.
func (w *watchdog) end(ctx context.Context) {
	w.mu.Lock()
	if w.late {
		klog.FromContext(ctx).Info("Hanging NVML call returned", "call", w.what, "duration", time.Since(w.since))
	}
	w.what, w.late = "", false
	w.mu.Unlock()
	<-w.slot
}

// endAll is end for a GPU, and for the reading of its use.
func (w *watchdog) endAll(ctx context.Context) {
	w.end(ctx)
	w.use.end(ctx)
}

// expire marks the running call as late if it has missed its deadline.
func (w *watchdog) expire(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.what == "" || w.late || time.Now().Before(w.deadline) {
		return
	}
	w.late = true
	klog.FromContext(ctx).Error(gpu.ErrHangs, "NVML call does not return", "call", w.what, "duration", time.Since(w.since))
}

// hangs returns an error while the running call hangs.
func (w *watchdog) hangs() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.late {
		return nil
	}
	return fmt.Errorf("%w: %s has not returned since %s", gpu.ErrHangs, w.what, w.since.UTC().Format(time.RFC3339))
}

// busy reports whether a call is running.
func (w *watchdog) busy() bool { return len(w.slot) > 0 }

// watchdogs are those of a library: one per GPU by NVML index, which is known even for a GPU without a handle, one for the wait for
// events, and one for node-wide calls.
type watchdogs struct {
	library, events *watchdog

	mu      sync.Mutex
	byIndex map[int]*watchdog
	// byAddress are those of sessions that know no indexes, see Direct.
	byAddress map[gpu.PCIAddress]*watchdog
}

func newWatchdogs() *watchdogs {
	return &watchdogs{
		library: newWatchdog(), events: newWatchdog(), byIndex: map[int]*watchdog{}, byAddress: map[gpu.PCIAddress]*watchdog{},
	}
}

// shutdown ends a session of the library, even for a caller whose context has ended. If it hangs, so does opening the next session.
func (w *watchdogs) shutdown(lib Library, limit time.Duration) error {
	end := func() (struct{}, error) { return struct{}{}, lib.Shutdown() }
	_, err := bounded(context.Background(), w.library, "nvmlShutdown", limit, true, end)
	return err
}

// at returns the watchdog of the GPU at an address.
func (w *watchdogs) at(pci gpu.PCIAddress) *watchdog {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byAddress[pci] == nil {
		w.byAddress[pci] = newWatchdog()
	}
	return w.byAddress[pci]
}

// of returns the watchdog of the GPU at an index.
func (w *watchdogs) of(index int) *watchdog {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byIndex[index] == nil {
		w.byIndex[index] = newWatchdog()
		w.byIndex[index].use = newWatchdog()
	}
	return w.byIndex[index]
}

// busy names a running call; empty if there is none.
func (w *watchdogs) busy() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, dog := range w.all() {
		if dog.busy() {
			dog.mu.Lock()
			defer dog.mu.Unlock()
			return dog.what
		}
	}
	return ""
}

// all returns the watchdogs in a fixed order; the caller must hold mu.
func (w *watchdogs) all() []*watchdog {
	all := []*watchdog{w.library, w.events}
	for i := 0; len(all) < 2*len(w.byIndex)+2; i++ {
		if dog := w.byIndex[i]; dog != nil {
			all = append(all, dog, dog.use)
		}
	}
	return all
}

// ofLibraries are the watchdogs of this process's libraries by path. Sessions with the same library share them, so that a
// second session detects a call that hangs in the first.
var ofLibraries = struct {
	mu     sync.Mutex
	byPath map[string]*watchdogs
}{byPath: map[string]*watchdogs{}}

// watchdogsOf returns the watchdogs of the library at path.
func watchdogsOf(path string) *watchdogs {
	ofLibraries.mu.Lock()
	defer ofLibraries.mu.Unlock()
	if ofLibraries.byPath[path] == nil {
		ofLibraries.byPath[path] = newWatchdogs()
	}
	return ofLibraries.byPath[path]
}
