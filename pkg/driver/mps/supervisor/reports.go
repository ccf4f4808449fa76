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

// reportsFile keeps what no watcher has taken, for the next life of the supervisor.
const reportsFile = "events.json"

// maxReports bounds what is kept for watchers that come later, and what one that is slow may fall behind.
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

// load reads what an earlier life left. What cannot be read is logged and forgotten: the claims that lost their daemon are
// on record too.
func (r *reports) load(ctx context.Context) {
	left, err := r.file.Read()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not read events that no watcher took")
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
		klog.FromContext(ctx).Info("Forgetting an event that no watcher took", "event", r.pending[0].Event)
		r.pending = slices.Clone(r.pending[1:])
	}
	r.pending = append(r.pending, next)
	if err := r.save(); err != nil {
		klog.FromContext(ctx).Error(err, "Could not keep events for later watchers")
	}
	// A watcher that has fallen behind is disconnected: it connects again and begins with what is pending.
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

// watch begins with all that is pending. The channel is closed if its reader falls behind.
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

// acknowledge forgets an event that a watcher has dealt with. It may be forgotten already.
func (r *reports) acknowledge(ctx context.Context, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.pending)
	r.pending = slices.DeleteFunc(r.pending, func(p report) bool { return p.ID == id })
	if len(r.pending) == before {
		return
	}
	if err := r.save(); err != nil {
		klog.FromContext(ctx).Error(err, "Could not record that an event was taken; it may be reported again")
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
