// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/cdi"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/claimstatus"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/controller"
	"github.com/cleave-dra/cleave/pkg/driver/names"
)

// Reasons of Events about other driver names under which Cleave served the node.
const (
	reasonOtherName         = "OtherDriverName"
	reasonOtherNameReleased = "OtherDriverNameReleased"
)

// Times of looking at other names: the time between two looks, that between the first two lists of their claims, and that
// between two attempts to finish those.
const (
	otherNamesEvery = 2 * time.Second
	otherListAgain  = 10 * time.Second
	finishEvery     = 10 * time.Second
)

// otherNames are the driver names, other than the plugin's own, under which GPUs of the node are allocated. As long as a
// claim of such a name is there, its devices are not allocated again, and once no plugin of that name runs, this one
// serves the kubelet by it, so that its pods can end.
type otherNames struct {
	s *service
	// state is what the API server says of the node.
	state func() cluster.State
	locks *claims.Locks
	boot  string
	// wake has a value when there is something new to look at.
	wake chan struct{}
	// looked is closed once it is known what is allocated under other names, or why it is not.
	looked chan struct{}

	// finding keeps one name from being opened twice. mu guards what is below.
	finding sync.Mutex
	mu      sync.Mutex
	byName  map[string]*otherName
	// observed is the state of each name, for the control loop.
	observed []controller.DriverName
	hardware *hardware
}

// otherName is one of them. But for engine it is touched by one goroutine, that of run.
type otherName struct {
	driver, dir string
	engine      *claims.Preparer
	// loaded: the engine has the name's records, and no plugin of the name has run since.
	loaded bool
	// allocated knows which claims have been allocated a device of the node under the name.
	allocated *claims.Follower
	// listed: claims are known since the name's slices went. The times are when to look again.
	listed                              bool
	nextList, nextFinish, nextReconcile time.Time
	idleSince                           time.Time
	helper                              *kubeletplugin.Helper
	// status tells the name's claims what their devices are, until endStatus; nil while the kubelet is not served.
	status    *claimstatus.Writer
	endStatus func()
	// broken has a value after the helper failed for good.
	broken chan error
	// reported is what was last reported of the name, by topic.
	reported map[string]string
}

func newOtherNames(s *service, boot string) *otherNames {
	return &otherNames{s: s,
		state: func() cluster.State { return s.cluster.State() }, boot: boot, wake: make(chan struct{}, 1),
		looked: make(chan struct{}), byName: map[string]*otherName{}}
}

// all are those that are known, in order.
func (n *otherNames) all() []*otherName {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []*otherName
	for _, driver := range slices.Sorted(maps.Keys(n.byName)) {
		all = append(all, n.byName[driver])
	}
	return all
}

// find opens the state of names that are not known yet, and reads it. It may be called at any time.
func (n *otherNames) find(ctx context.Context) {
	found, err := names.Find(n.s.config.PluginsDir, n.s.config.DriverName)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not look for other driver names")
	}
	for _, driver := range found {
		n.open(ctx, driver)
	}
}

// open opens the state of a name unless it is open, and makes it where there is none.
func (n *otherNames) open(ctx context.Context, driver string) {
	n.finding.Lock()
	defer n.finding.Unlock()
	n.mu.Lock()
	known := n.byName[driver] != nil
	n.mu.Unlock()
	if known {
		return
	}
	o := &otherName{
		driver: driver, dir: filepath.Join(n.s.config.PluginsDir, driver),
		broken: make(chan error, 1), reported: map[string]string{},
	}
	logger := klog.FromContext(ctx)
	var err error
	if o.engine, err = n.engineOf(o); err != nil {
		logger.Error(err, "Could not open the state of another driver name", "driver", driver)
		return
	}
	o.allocated = claims.NewUnpublishedFollower(o.engine.Ledger, presentClaims{n.s}, n.inventory)
	if err := o.engine.Ledger.LoadReadOnly(ctx); err != nil {
		logger.Error(err, "Could not read what is allocated under another driver name; retrying", "driver", driver)
	}
	n.s.engine.AddPeer(o.engine)
	n.locks.Doubt()
	logger.Info("Found the state of another driver name", "driver", driver, "dir", o.dir, "claims", len(o.engine.Ledger.Records()))
	n.mu.Lock()
	n.byName[driver] = o
	n.mu.Unlock()
	signal(n.wake)
}

// engineOf makes the engine of a name, on the locks of the plugin's own.
func (n *otherNames) engineOf(o *otherName) (*claims.Preparer, error) {
	disk := store.NewDisk()
	store, err := records.OpenStore(disk, filepath.Join(o.dir, names.Claims))
	if err != nil {
		return nil, err
	}
	layouts, err := records.OpenLayouts(disk, filepath.Join(o.dir, names.Layouts))
	if err != nil {
		return nil, err
	}
	config := n.s.config
	options := claims.Options{
		Identity: claims.Identity{Driver: o.driver, Pool: config.NodeName}, BootID: n.boot,
		Store: store, Layouts: layouts, Locks: n.locks, Specs: cdi.Remover{Dir: config.CDIDir, Driver: o.driver},
		Processes: podProcesses(&config), Holders: n.s.holders.of, OnChange: func() { n.s.loop.Mark(controller.Partitions) },
		OnAllocate: func() { n.s.loop.Mark(controller.Partitions); signal(n.wake) }, OnRelease: n.s.claimEvents.released,
	}
	if n.s.sharing != nil {
		options.Sharing = n.s.sharing.As(o.driver)
	}
	if n.s.sessions != nil {
		options.Sessions = n.s.sessions
	}
	return claims.New(options), nil
}

// useHardware has claims of other names prepared and unprepared by the hardware.
func (n *otherNames) useHardware(hw *hardware) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hardware = hw
	signal(n.wake)
}

// states are those of all names that are known, in order.
func (n *otherNames) states() []controller.DriverName {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := slices.Clone(n.observed)
	for _, driver := range slices.Sorted(maps.Keys(n.byName)) {
		if !slices.ContainsFunc(all, func(o controller.DriverName) bool { return o.Driver == driver }) {
			all = append(all, controller.DriverName{Driver: driver}) // found, and not looked at yet
		}
	}
	return all
}

// run looks at other names, again and again, until ctx ends.
func (n *otherNames) run(ctx context.Context) {
	defer func() {
		for _, o := range n.all() {
			o.stopServing()
		}
	}()
	if n.s.cluster.Wait(ctx) != nil {
		return
	}
	tick := time.NewTicker(otherNamesEvery)
	defer tick.Stop()
	for first := true; ; first = false {
		n.look(ctx)
		if first {
			close(n.looked)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-n.wake:
		}
	}
}

// wait returns once it has been looked what is allocated under other names, or ctx ends.
func (n *otherNames) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-n.looked:
		return nil
	}
}

// concerns reports whether a device is made of a GPU that this plugin serves; of any, as long as it is not known which those
// are. Plugins of two names that serve different GPUs do not conflict.
func (n *otherNames) concerns(d cluster.Device) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hardware == nil || n.hardware.Session.Node().Find(d.PCI.DeviceName()) != nil
}

// look looks at all names, and does about each what is to be done.
func (n *otherNames) look(ctx context.Context) {
	n.find(ctx)
	published := map[string]bool{}
	for _, d := range n.state().Others {
		if cluster.IsCleaveName(d.Name) && n.concerns(d) {
			published[d.Driver] = true
		}
	}
	for _, driver := range []string{v1alpha1.Group, nvidia.DriverName} {
		if published[driver] && driver != n.s.config.DriverName {
			n.open(ctx, driver) // its state may be gone before its slices
		}
	}
	var observed []controller.DriverName
	for _, o := range n.all() {
		observed = append(observed, controller.DriverName{Driver: o.driver, State: n.lookAt(ctx, o, published[o.driver])})
	}
	n.mu.Lock()
	changed := !slices.EqualFunc(observed, n.observed, func(a, b controller.DriverName) bool {
		return a.Driver == b.Driver && names.Hold(a.Driver, a.State) == names.Hold(b.Driver, b.State)
	})
	n.observed = observed
	n.mu.Unlock()
	if changed {
		n.s.loop.Mark(controller.Names)
	}
}

// lookAt does about a name what is to be done now, and returns its state.
func (n *otherNames) lookAt(ctx context.Context, o *otherName, published bool) names.Observed {
	seen := names.Observed{Published: published, Runs: n.load(ctx, o)}
	if published {
		o.listed = false
	}
	if !published && (!o.listed || time.Now().After(o.nextList)) {
		n.list(ctx, o)
	}
	n.follow(ctx, o)
	if o.compatible() && o.helper == nil {
		seen.Taken = n.taken(ctx, o)
	}
	seen = n.observe(o, seen)
	plan := names.Decide(seen)
	if plan.Retire && n.list(ctx, o) { // a claim may have been allocated from slices that were about to go
		seen = n.observe(o, seen)
		plan = names.Decide(seen)
	}
	if plan.Adopt {
		n.adopt(ctx, o)
	}
	if plan.Serve {
		n.serve(ctx, o)
	} else {
		o.stopServing()
	}
	n.report(ctx, o, seen)
	if plan.Retire {
		n.retire(ctx, o)
	}
	return seen
}

// observe fills in what is left of a name's claims.
func (n *otherNames) observe(o *otherName, seen names.Observed) names.Observed {
	recorded := o.engine.Ledger.Records()
	seen.Listed, seen.Records, seen.Allocated = o.listed, len(recorded), len(o.engine.Ledger.Unrecorded())
	switch {
	case seen.Records+seen.Allocated > 0 || seen.Published || seen.Runs:
		o.idleSince = time.Time{}
	case o.idleSince.IsZero():
		o.idleSince = time.Now()
	default:
		seen.Idle = time.Since(o.idleSince)
	}
	return seen
}

// load reads a name's records, and takes charge of them where no plugin of the name runs. It reports whether one does.
func (n *otherNames) load(ctx context.Context, o *otherName) (runs bool) {
	logger := klog.FromContext(ctx)
	runs, err := names.Runs(o.dir)
	if err != nil {
		logger.Error(err, "Could not look whether a plugin of another driver name runs", "driver", o.driver)
		runs = true
	}
	if !o.loaded || runs {
		err = errors.Join(err, o.engine.Ledger.LoadReadOnly(ctx))
	}
	if !o.loaded && !runs && err == nil {
		err = o.engine.Load(ctx, n.s.events.Warn)
		o.nextFinish, o.nextReconcile = time.Time{}, time.Time{}
	}
	if err != nil {
		logger.Error(err, "Could not read what is allocated under another driver name; retrying", "driver", o.driver)
	}
	o.loaded = !runs && (o.loaded || err == nil)
	return runs || !o.loaded
}

// adopt finishes what a name's claims have begun, compares them with the API server, and takes over its layouts and mode changes.
func (n *otherNames) adopt(ctx context.Context, o *otherName) {
	n.mu.Lock()
	hw := n.hardware
	n.mu.Unlock()
	if hw == nil || time.Now().Before(o.nextFinish) {
		return
	}
	logger := klog.FromContext(ctx)
	if !n.s.engine.Ready() {
		return
	}
	if !o.engine.Ready() {
		static, err := n.staticOf(ctx, hw, o)
		if err != nil {
			logger.Error(err, "Could not write the CDI spec of another driver name; retrying", "driver", o.driver)
			return
		}
		if !n.s.engine.Lend(o.engine, static) {
			return
		}
		o.nextReconcile = time.Time{}
		o.restoreStatus()
	}
	if now := time.Now(); now.After(o.nextReconcile) {
		if err := errors.Join(n.s.engine.Partitions.AdoptLayouts(ctx, o.engine.Ledger), adoptModes(ctx, n.s.engine.Modes, o)); err != nil {
			logger.Error(err, "Could not take over the layouts or mode changes of another driver name; retrying", "driver", o.driver)
		}
		o.engine.Maintain(ctx, cluster.Claims{Client: n.s.client})
		o.sweep(ctx, n.s)
		o.nextReconcile = now.Add(n.s.config.ReconcileEvery)
		n.s.loop.Mark(controller.Partitions)
	} else if o.engine.Unfinished() {
		o.engine.Maintain(ctx, cluster.Claims{Client: n.s.client})
	}
	o.nextFinish = time.Now().Add(finishEvery)
}
