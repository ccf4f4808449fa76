// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/cleave-dra/cleave/e2e/history"
)

const (
	// retry is how long a source waits before it tries again what cannot be watched.
	retry = 100 * time.Millisecond
	// catchUp is how long after a watch was taken up again its events may be of before.
	catchUp = 2 * time.Second
)

func (a API) claims(ctx context.Context) (runtime.Object, error) {
	return a.Kube.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
}

func (a API) watchClaims(ctx context.Context, from string) (apiwatch.Interface, error) {
	return a.Kube.ResourceV1().ResourceClaims(metav1.NamespaceAll).Watch(ctx, metav1.ListOptions{ResourceVersion: from})
}

func (a API) slices(ctx context.Context) (runtime.Object, error) {
	return a.Kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: a.ofNode()})
}

func (a API) watchSlices(ctx context.Context, from string) (apiwatch.Interface, error) {
	return a.Kube.ResourceV1().ResourceSlices().Watch(ctx, metav1.ListOptions{ResourceVersion: from, FieldSelector: a.ofNode()})
}

// follower reports all changes of a kind of objects. A watch that ends is taken up where it ended; if the API server does not
// remember that far back, what has changed is found by a list.
type follower struct {
	recorder         *history.Recorder
	list             func(context.Context) (runtime.Object, error)
	watch            func(ctx context.Context, from string) (apiwatch.Interface, error)
	changed, deleted func(runtime.Object)

	known   map[types.UID]runtime.Object
	version string
	// blind is since when nothing was seen.
	blind *time.Duration
	// seeing is when the gap is over.
	seeing <-chan time.Time
}

// errExpired says that the API server does not remember a version.
var errExpired = errors.New("the watch has expired")

func (f *follower) run(ctx context.Context, ready func()) error {
	f.known = map[types.UID]runtime.Object{}
	if err := f.relist(ctx); err != nil {
		return describe("objects of the API server", err)
	}
	ready()
	for ctx.Err() == nil {
		err := f.follow(ctx)
		if f.blind == nil {
			now := f.recorder.Clock().Now()
			f.blind = &now
		}
		f.seeing = nil
		if errors.Is(err, errExpired) {
			err = f.relist(ctx)
		}
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(retry):
			}
		}
	}
	f.endGap()
	return nil
}

// endGap notes that what was reported since blind need not have happened when it was reported.
func (f *follower) endGap() {
	if f.blind != nil {
		f.recorder.Add(history.Gap{Source: history.SourceAPI, From: *f.blind})
	}
	f.blind, f.seeing = nil, nil
}

// relist reports the differences between what is there and what was known.
func (f *follower) relist(ctx context.Context) error {
	list, err := f.list(ctx)
	if err != nil {
		return err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	there := map[types.UID]runtime.Object{}
	for _, o := range items {
		there[uidOf(o)] = o
		f.changed(o)
	}
	for uid, o := range f.known {
		if there[uid] == nil {
			f.deleted(o)
		}
	}
	f.known = there
	l, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	f.version = l.GetResourceVersion()
	return nil
}

// follow reports the events of one watch until it ends.
func (f *follower) follow(ctx context.Context) error {
	w, err := f.watch(ctx, f.version)
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return errExpired
	}
	if err != nil {
		return err
	}
	defer w.Stop()
	if f.blind != nil {
		f.seeing = time.After(catchUp)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.seeing:
			f.endGap()
		case e, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			if e.Type == apiwatch.Error {
				return errExpired
			}
			if err := f.handle(e); err != nil {
				return err
			}
		}
	}
}

func (f *follower) handle(e apiwatch.Event) error {
	o, err := meta.Accessor(e.Object)
	if err != nil {
		return err
	}
	f.version = o.GetResourceVersion()
	switch e.Type {
	case apiwatch.Added, apiwatch.Modified:
		f.known[o.GetUID()] = e.Object
		f.changed(e.Object)
	case apiwatch.Deleted:
		delete(f.known, o.GetUID())
		f.deleted(e.Object)
	}
	return nil
}

func uidOf(o runtime.Object) types.UID {
	m, err := meta.Accessor(o)
	if err != nil {
		return ""
	}
	return m.GetUID()
}
