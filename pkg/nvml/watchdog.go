// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// Patience is how long calls of NVML may take before they count as hanging.
type Patience struct {
	// Read is for what asks a GPU something. On healthy GPUs that takes milliseconds.
	Read time.Duration
	// Change is for what changes a GPU or initialises one: the driver does that at the first handle
	// (nvmlDeviceGetHandleByIndex_v2), in seconds. It is below the 45 s that the kubelet waits for a plugin.
	Change time.Duration
}

// defaultPatience bounds calls unless WithPatience says otherwise.
var defaultPatience = Patience{Read: 10 * time.Second, Change: 30 * time.Second}

// watchdog bounds what is done with one GPU. NVML calls cannot be cancelled, so each runs in a goroutine of its own, one at
// a time: however often a GPU that hangs is asked, one goroutine is stuck.
type watchdog struct {
	// slot has a value while something runs.
	slot chan struct{}

	mu sync.Mutex
	// what runs, and since when.
	what            string
	since, deadline time.Time
	// late is set once what runs has used up its patience.
	late bool
}

func newWatchdog() *watchdog { return &watchdog{slot: make(chan struct{}, 1)} }

// bounded runs f unless an earlier call hangs, and gives up waiting for it after limit with gpu.ErrHangs. Then f goes on
// until it returns by itself, and nothing else runs before. If changes is set, the end of ctx does not end the wait: what
// has begun has to be known.
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
		defer func() { // a panic is the caller's
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
	case a := <-answers: // just in time
		return take(a)
	default:
	}
	w.expire(ctx)
	if err := w.hangs(); err != nil {
		return none, err
	}
	return none, fmt.Errorf("%s returned after %s, which is too late: %w", what, limit, gpu.ErrHangs)
}

// begin waits until nothing runs. It gives up at once where a call hangs.
func (w *watchdog) begin(ctx context.Context, what string, limit time.Duration) error {
	for {
		select {
		case w.slot <- struct{}{}:
			w.mu.Lock()
			defer w.mu.Unlock()
			w.what, w.since, w.deadline, w.late = what, time.Now(), time.Now().Add(limit), false
			return nil
		default:
		}
		if err := w.await(ctx); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

// await returns when what runs may have ended, or why there is no use in waiting.
func (w *watchdog) await(ctx context.Context) error {
	if err := w.hangs(); err != nil {
		return err
	}
	w.mu.Lock()
	left := time.Until(w.deadline)
	w.mu.Unlock()
	timer := time.NewTimer(max(left, time.Millisecond))
	defer timer.Stop()
	select {
	case w.slot <- struct{}{}:
		<-w.slot
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		w.expire(ctx) // who runs it may have given up before its deadline
		return nil
	}
}

// end notes that what ran has returned.
func (w *watchdog) end(ctx context.Context) {
	w.mu.Lock()
	if w.late {
		klog.FromContext(ctx).Info("A call of NVML that did not return has returned", "call", w.what, "duration", time.Since(w.since))
	}
	w.what, w.late = "", false
	w.mu.Unlock()
	<-w.slot
}

// expire notes that what runs has used up its patience, if it has.
func (w *watchdog) expire(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.what == "" || w.late || time.Now().Before(w.deadline) {
		return
	}
	w.late = true
	klog.FromContext(ctx).Error(gpu.ErrHangs, "A call of NVML does not return", "call", w.what, "duration", time.Since(w.since))
}

// hangs is why nothing can be asked now; nil if something can.
func (w *watchdog) hangs() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.late {
		return nil
	}
	return fmt.Errorf("%w: %s has not returned since %s", gpu.ErrHangs, w.what, w.since.UTC().Format(time.RFC3339))
}

// busy reports whether something runs.
func (w *watchdog) busy() bool { return len(w.slot) > 0 }

// watchdogs are those of a library: one for each GPU by its NVML index, which is all that is known of a GPU whose handle
// cannot be had, one for the wait for events, and one for what is about no GPU.
type watchdogs struct {
	library, events *watchdog

	mu      sync.Mutex
	byIndex map[int]*watchdog
}

func newWatchdogs() *watchdogs {
	return &watchdogs{library: newWatchdog(), events: newWatchdog(), byIndex: map[int]*watchdog{}}
}

// of is the watchdog of the GPU at an index.
func (w *watchdogs) of(index int) *watchdog {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byIndex[index] == nil {
		w.byIndex[index] = newWatchdog()
	}
	return w.byIndex[index]
}

// busy names a call that runs; empty if none does.
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

// all are the watchdogs in a fixed order; the caller holds mu.
func (w *watchdogs) all() []*watchdog {
	all := []*watchdog{w.library, w.events}
	for i := 0; len(all) < len(w.byIndex)+2; i++ {
		if dog := w.byIndex[i]; dog != nil {
			all = append(all, dog)
		}
	}
	return all
}

// ofLibraries are the watchdogs of the libraries that this process uses, by path: a second session must not wait for a call
// that already hangs in the first, since both use the same library.
var ofLibraries = struct {
	mu     sync.Mutex
	byPath map[string]*watchdogs
}{byPath: map[string]*watchdogs{}}

// watchdogsOf are the watchdogs of the library at path.
func watchdogsOf(path string) *watchdogs {
	ofLibraries.mu.Lock()
	defer ofLibraries.mu.Unlock()
	if ofLibraries.byPath[path] == nil {
		ofLibraries.byPath[path] = newWatchdogs()
	}
	return ofLibraries.byPath[path]
}
