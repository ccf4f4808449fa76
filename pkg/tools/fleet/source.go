// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/version"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/tools/inspect"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// Config of a Source.
type Config struct {
	Client kubernetes.Interface
	// Driver is the name of the DRA driver.
	Driver string
	// Pods are watched for those that request extended resources, or whose claims do not exist, and wait.
	Pods bool
	// Version asks the API server for its release, which is a sign of life, too; nil to do without both.
	Version func(ctx context.Context) (*apiversion.Info, error)
	// Settle is how long changes are collected before a snapshot; zero for DefaultSettle.
	Settle time.Duration
}

// DefaultSettle is short for a person who waits, and long against a burst of events.
const DefaultSettle = 500 * time.Millisecond

// pingEvery is how soon a lost connection is noticed.
const pingEvery = 10 * time.Second

// ErrUnknown is returned for a node that has no slices, and for a claim that does not exist.
var ErrUnknown = errors.New("it is not there")

// Source watches the API server.
type Source struct {
	config  Config
	watches watches
	notices []string // of what cannot be watched
	packing *pools.Cache
	synced  []cache.InformerSynced // report whether the handlers have seen what there was

	mu      sync.Mutex
	dirty   dirty
	current *Snapshot
	next    chan struct{} // closed by the next snapshot
	lost    string        // since when the API server does not answer, and why; empty while it does
	release *version.Version
	wake    chan struct{}
}

// dirty is what changed since the last snapshot.
type dirty struct {
	nodes, claims map[string]bool
	all           bool
	// reasons is set for a change of what claims wait for, which no row shows.
	reasons bool
}

func newDirty() dirty { return dirty{nodes: map[string]bool{}, claims: map[string]bool{}} }

// NewSource checks its permissions, and fails if it may not read the objects that every picture needs.
func NewSource(ctx context.Context, config Config) (*Source, error) {
	if config.Settle == 0 {
		config.Settle = DefaultSettle
	}
	s := &Source{
		config: config, watches: watches{driver: config.Driver}, packing: pools.NewCache(), dirty: newDirty(), next: make(chan struct{}),
		wake: make(chan struct{}, 1),
	}
	if err := s.watch(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Run watches until ctx ends.
func (s *Source) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, w := range s.watches.all() {
		wg.Go(func() { w.RunWithContext(ctx) })
	}
	if s.config.Version != nil {
		wg.Go(func() { s.ping(ctx) })
	}
	if !cache.WaitForCacheSync(ctx.Done(), s.synced...) {
		return
	}
	klog.FromContext(ctx).Info("Read the cluster", "driver", s.config.Driver, "slices", len(s.watches.slices.GetStore().ListKeys()),
		"claims", len(s.watches.claims.GetStore().ListKeys()))
	s.mark(func(d *dirty) { d.all = true })
	for s.awaitChange(ctx) {
		s.build(ctx)
	}
}

// awaitChange waits for a change and for those that come right after it; false once ctx ends.
func (s *Source) awaitChange(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-s.wake:
	}
	if s.Snapshot() == nil {
		return true
	}
	settle := time.NewTimer(s.config.Settle)
	defer settle.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-settle.C:
		return true
	}
}

// mark notes a change and wakes the loop.
func (s *Source) mark(change func(*dirty)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.dirty)
	select {
	case s.wake <- struct{}{}:
	default: // it is awake
	}
}

// take returns what changed, and starts anew.
func (s *Source) take() dirty {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.dirty
	s.dirty = newDirty()
	return d
}

// Snapshot is the newest picture; nil before the first.
func (s *Source) Snapshot() *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// Next is closed when there is a newer snapshot than the present.
func (s *Source) Next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}

func (s *Source) publish(snapshot *Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = snapshot
	close(s.next)
	s.next = make(chan struct{})
}

// ping notes when the API server stops to answer, and when it answers again. Watches report neither.
func (s *Source) ping(ctx context.Context) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		ask, cancel := context.WithTimeout(ctx, pingEvery)
		info, err := s.config.Version(ask)
		cancel()
		if ctx.Err() != nil {
			return
		}
		s.answered(ctx, info, err)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// answered notes whether the API server does, and its release.
func (s *Source) answered(ctx context.Context, info *apiversion.Info, err error) {
	s.mu.Lock()
	was := s.lost
	switch {
	case err == nil:
		s.lost = ""
		if release, err := version.ParseGeneric(info.GitVersion); err == nil {
			s.release = release
		}
	case was == "":
		s.lost = fmt.Sprintf("The API server has not answered since %s, and this page shows what was known then: %v",
			time.Now().UTC().Format("15:04:05 UTC"), err)
	}
	changed := was != s.lost
	s.mu.Unlock()
	if !changed {
		return
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "The API server does not answer")
	} else if was != "" {
		klog.FromContext(ctx).Info("The API server answers again")
	}
	s.mark(func(*dirty) {})
}

// View is the whole view of a node, of now.
func (s *Source) View(node string) (*inspect.View, error) {
	pool, err := s.pool(node)
	if err != nil {
		return nil, err
	}
	return inspect.OfPool(*pool)
}
