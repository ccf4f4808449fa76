// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/claimstatus"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/controller"
	"github.com/cleave-dra/cleave/pkg/driver/names"
)

// Reasons of Events about other driver names under which Cleave served the node.
const (
	reasonOtherName         = "OtherDriverName"         // claims of the driver's other name have GPUs
	reasonOtherNameReleased = "OtherDriverNameReleased" // no claim of the driver's other name has a GPU any more
)

// Intervals and limits for other names: the time between two checks, the time between the first two lists of their claims, and the limit
// for reading records that a running plugin of such a name has written.
const (
	otherNamesEvery = 2 * time.Second
	otherListAgain  = 10 * time.Second
	learnTimeout    = time.Second
)

// otherNames are the driver names, other than the plugin's own, under which GPUs of the node are allocated. As long as a
// claim of such a name exists, its devices are not allocated again, and while no plugin of that name is running, this one
// serves the kubelet under that name, so that its pods can end.
type otherNames struct {
	s *service
	// state returns the API server's state of the node.
	state func() cluster.State
	// wake triggers a check.
	wake chan struct{}
	// looked is closed once it is known whether plugins of other names are running and publishing.
	looked chan struct{}
	// listing is that of the claims of all names.
	listing retry

	// equipping prevents the CDI spec of a name from being written twice concurrently. mu guards the fields below.
	equipping sync.Mutex
	mu        sync.Mutex
	byName    map[string]*otherName
	// observed is the state of each name, for the control loop.
	observed []controller.DriverName
	hardware *hardware
}

// otherName is the state of one other name. It is used only by the goroutine of run.
type otherName struct {
	driver, dir string
	// gone is the time since which the name has no slices; zero while it has some.
	gone time.Time
	// nextList and nextSweep are when to list its claims, and to clean up after claims that were released without Unprepare.
	nextList, nextSweep time.Time
	retiring            retry
	idleSince           time.Time
	helper              *kubeletplugin.Helper
	// status writes device details to the status of the name's claims, until endStatus; nil while the kubelet is not served.
	status    *claimstatus.Writer
	endStatus func()
	// restored: the status of claims was corrected after their devices became known.
	restored bool
	// broken has a value after the helper failed permanently.
	broken chan error
	// reported is the last report about the name, by topic.
	reported map[string]string
}

func newOtherNames(s *service) *otherNames {
	return &otherNames{s: s,
		state: func() cluster.State { return s.cluster.State() }, wake: make(chan struct{}, 1),
		looked: make(chan struct{}), byName: map[string]*otherName{}}
}

// all returns the known names, sorted.
func (n *otherNames) all() []*otherName {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []*otherName
	for _, driver := range slices.Sorted(maps.Keys(n.byName)) {
		all = append(all, n.byName[driver])
	}
	return all
}

// find adds the names that have files or claims on the node.
func (n *otherNames) find(ctx context.Context) {
	found, err := names.Find(n.s.config.PluginsDir, n.s.config.DriverName)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not look for other driver names")
	}
	for _, driver := range slices.Concat(found, n.s.engine.Ledger.Names.Former()) {
		n.add(ctx, driver)
	}
}

// add adds a name.
func (n *otherNames) add(ctx context.Context, driver string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byName[driver] != nil {
		return
	}
	n.s.engine.Ledger.Names.Add(driver)
	o := &otherName{
		driver: driver, dir: filepath.Join(n.s.config.PluginsDir, driver), broken: make(chan error, 1), reported: map[string]string{},
	}
	n.byName[driver] = o
	klog.FromContext(ctx).Info("Found another driver name", "driver", driver, "dir", o.dir,
		"claims", len(n.s.engine.Named(driver).Records()))
}

// useHardware lets claims of other names be prepared with the hardware.
func (n *otherNames) useHardware(hw *hardware) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hardware = hw
	signal(n.wake)
}

// states returns the states of all known names, sorted.
func (n *otherNames) states() []controller.DriverName {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := slices.Clone(n.observed)
	for _, driver := range slices.Sorted(maps.Keys(n.byName)) {
		if !slices.ContainsFunc(all, func(o controller.DriverName) bool { return o.Driver == driver }) {
			all = append(all, controller.DriverName{Driver: driver}) // found, but not checked yet
		}
	}
	return all
}

// run checks other names repeatedly until ctx ends.
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

// wait returns once other names were checked, or ctx ends.
func (n *otherNames) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-n.looked:
		return nil
	}
}

// concerns reports whether a device belongs to a GPU that this plugin serves, or may belong to one while these are
// unknown. Plugins of two names that serve different GPUs do not conflict.
func (n *otherNames) concerns(d cluster.Device) bool {
	node := n.inventory()
	return node == nil || node.Find(d.PCI.DeviceName()) != nil
}

// inventory returns the node's GPUs; nil while the driver is away.
func (n *otherNames) inventory() *gpu.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hardware == nil {
		return nil
	}
	return n.hardware.Session.Node()
}

// look checks all names and acts on the results.
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
			n.add(ctx, driver) // its files may be removed before its slices
		}
	}
	n.equip(ctx)
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

// equip writes the CDI spec of each name that has none since the driver is there, and no plugin of its own.
func (n *otherNames) equip(ctx context.Context) {
	n.equipping.Lock()
	defer n.equipping.Unlock()
	for _, o := range n.all() {
		set := n.s.engine.LacksCDI(o.driver) // first: the hardware may be another one by the time that the spec is written
		if runs, err := names.Runs(o.dir); set == nil || runs || err != nil {
			continue
		}
		n.mu.Lock()
		hw := n.hardware
		n.mu.Unlock()
		static, err := staticOf(ctx, n.s, hw, o.driver)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Could not write the CDI spec of another driver name; retrying", "driver", o.driver)
			continue
		}
		set(static)
	}
}

// lookAt checks a name, acts on the result, and returns its state.
func (n *otherNames) lookAt(ctx context.Context, o *otherName, published bool) names.Observed {
	seen := names.Observed{Published: published, Runs: n.runs(ctx, o)}
	if seen.Runs || published {
		n.learn(ctx)
	}
	if o.compatible() && o.helper == nil {
		seen.Taken = n.taken(ctx, o)
	}
	n.list(ctx, o, published)
	seen = n.observe(o, seen)
	plan := names.Decide(seen)
	if plan.Retire {
		if plan.Retire = o.retiring.due() && n.listClaims(ctx); plan.Retire { // one may be allocated from slices that were about to be deleted
			seen = n.observe(o, seen)
			plan = names.Decide(seen)
		}
	}
	if plan.Serve {
		n.serve(ctx, o)
		n.restoreStatus(o)
		n.sweep(ctx, o)
	} else {
		o.stopServing()
	}
	n.report(ctx, o, seen)
	if plan.Retire {
		n.retire(ctx, o)
	}
	return seen
}

// runs reports whether a plugin of a name is running, or may be running.
func (n *otherNames) runs(ctx context.Context, o *otherName) bool {
	runs, err := names.Runs(o.dir)
	n.log(ctx, o, "runs", err)
	return runs || err != nil
}

// learn reads records that running plugins of other names have written.
func (n *otherNames) learn(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, learnTimeout)
	defer cancel()
	if err := n.s.engine.Ledger.Learn(ctx); err != nil {
		klog.FromContext(ctx).V(4).Info("Cannot read the allocations of another plugin yet", "reason", err.Error())
	}
}

// list lists the claims once a name's slices are gone, soon again for allocations that were in progress, and then periodically.
func (n *otherNames) list(ctx context.Context, o *otherName, published bool) {
	if published {
		o.gone, o.nextList = time.Time{}, time.Time{}
		return
	}
	now, again := time.Now(), n.s.config.ReconcileEvery
	if o.nextList.IsZero() {
		again = min(otherListAgain, again)
	}
	if o.gone.IsZero() {
		o.gone = now
	}
	if !now.Before(o.nextList) && n.listClaims(ctx) {
		o.nextList = now.Add(again)
	}
}

// listClaims lists the claims of the cluster, unless that has just failed: all nodes do so after an outage.
func (n *otherNames) listClaims(ctx context.Context) bool {
	if !n.listing.due() {
		return false
	}
	listed := n.s.allocations.list(ctx)
	n.listing.note(listed)
	return listed
}

// observe adds the state of a name's claims.
func (n *otherNames) observe(o *otherName, seen names.Observed) names.Observed {
	began, _ := n.s.allocations.state()
	seen.Listed = !o.gone.IsZero() && !began.Before(o.gone)
	seen.Records = len(n.s.engine.Named(o.driver).Records())
	seen.Allocated = len(claims.Under(o.driver, n.s.engine.Ledger.Unrecorded()))
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
