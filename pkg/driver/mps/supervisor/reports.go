// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"crypto/rand"
	"path/filepath"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

// reportsFile stores unacknowledged events for the next supervisor.
const reportsFile = "events.json"

// maxReports bounds the events kept for later watchers, and the backlog of a slow one.
const maxReports = 256

// reports hands events to watchers. An event stays until a watcher has acknowledged it, so none is lost while the plugin
// restarts.
type reports struct {
	file *store.File[reportsOnDisk]
	boot string

	mu       sync.Mutex
	pending  []report // oldest first
	watchers []chan report
}

// report is an event with the name under which it is acknowledged.
type report struct {
	ID string `json:"id"`
	mps.Event
}

// reportsOnDisk is the content of reportsFile.
type reportsOnDisk struct {
	Version int      `json:"version"`
	Boot    string   `json:"boot"`
	Pending []report `json:"pending"`
}

var reportsFormat = &store.Format[reportsOnDisk]{
	Kind: "events of MPS", Limit: 1 << 20, Version: 1,
	VersionOf: func(r *reportsOnDisk) (version, readableFrom int) { return r.Version, 0 },
}

func newReports(disk store.FileSystem, dir, boot string) *reports {
	return &reports{file: store.NewFile(disk, filepath.Join(dir, reportsFile), reportsFormat), boot: boot}
}

// load reads the events of an earlier supervisor. Unreadable ones are logged and dropped: the claims that lost their daemon are
// also on record.
func (r *reports) load(ctx context.Context) {
	left, err := r.file.Read()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not read unacknowledged events")
		return
	}
	if left == nil || left.Boot != r.boot {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending = left.Pending[max(0, len(left.Pending)-maxReports):]
}

// add hands an event to all watchers and keeps it until one acknowledges it.
func (r *reports) add(ctx context.Context, event mps.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := report{ID: rand.Text(), Event: event}
	if len(r.pending) == maxReports {
		klog.FromContext(ctx).Info("Dropping an unacknowledged event", "event", r.pending[0].Event)
		r.pending = slices.Clone(r.pending[1:])
	}
	r.pending = append(r.pending, next)
	if err := r.save(); err != nil {
		klog.FromContext(ctx).Error(err, "Could not keep events for later watchers")
	}
	// A watcher that has fallen behind is disconnected: it reconnects and starts with the pending events.
	r.watchers = slices.DeleteFunc(r.watchers, func(w chan report) bool {
		select {
		case w <- next:
			return false
		default:
			close(w)
			return true
		}
	})
}

// watch starts with all pending events. The channel is closed if its reader falls behind.
func (r *reports) watch() <-chan report {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := make(chan report, 2*maxReports)
	for _, p := range r.pending {
		w <- p // fits
	}
	r.watchers = append(r.watchers, w)
	return w
}

// leave ends a watch.
func (r *reports) leave(w <-chan report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watchers = slices.DeleteFunc(r.watchers, func(other chan report) bool { return other == w })
}

// acknowledge drops an event that a watcher has handled. It may be gone already.
func (r *reports) acknowledge(ctx context.Context, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.pending)
	r.pending = slices.DeleteFunc(r.pending, func(p report) bool { return p.ID == id })
	if len(r.pending) == before {
		return
	}
	if err := r.save(); err != nil {
		klog.FromContext(ctx).Error(err, "Could not record the acknowledgement of an event; it may be reported again")
	}
}

// forget removes the file unless events are pending, and reports whether none are.
func (r *reports) forget() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.pending) == 0 && r.file.Remove() == nil
}

func (r *reports) save() error {
	return r.file.Write(&reportsOnDisk{Version: reportsFormat.Version, Boot: r.boot, Pending: r.pending})
}
