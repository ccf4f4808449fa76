// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/cdi"
	"github.com/cleave-dra/cleave/pkg/driver/claimstatus"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/names"
)

// presentClaims asks the API server for claims with the client of the moment.
type presentClaims struct{ s *service }

func (p presentClaims) Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	return cluster.Claims{Client: p.s.client}.Claim(ctx, namespace, name)
}

func (p presentClaims) Each(ctx context.Context, visit func(*resourceapi.ResourceClaim) bool) error {
	return cluster.Claims{Client: p.s.client}.Each(ctx, visit)
}

// list has the claims listed: once the name's slices have gone, soon after, for what was being allocated just then, and with each
// reconcile.
func (n *otherNames) list(ctx context.Context, o *otherName) bool {
	err := o.allocated.List(ctx)
	n.log(ctx, o, "list", err)
	if err != nil {
		return false
	}
	o.nextList = time.Now().Add(n.s.config.ReconcileEvery)
	if !o.listed {
		o.nextList = time.Now().Add(min(otherListAgain, n.s.config.ReconcileEvery))
	}
	o.listed = true
	return true
}

// follow asks for the claims of a name that have no record. Claims with a record are unprepared first.
func (n *otherNames) follow(ctx context.Context, o *otherName) {
	_, err := o.allocated.Follow(ctx, time.Now())
	n.log(ctx, o, "follow", err)
}

// inventory are the node's GPUs; nil while the driver is away.
func (n *otherNames) inventory() *gpu.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hardware == nil {
		return nil
	}
	return n.hardware.Session.Node()
}

// taken reports whether another driver of a name that is not Cleave's alone serves the kubelet.
func (n *otherNames) taken(ctx context.Context, o *otherName) bool {
	c := n.s.nameConflict()
	c.driver = o.driver
	err := c.findPlugin(ctx)
	n.log(ctx, o, "taken", err)
	return err != nil
}

// serve serves the kubelet by a name, too: pods of its claims end, and those whose claims are allocated begin. Nothing is
// published by it, so nothing new is allocated.
func (n *otherNames) serve(ctx context.Context, o *otherName) {
	select {
	case err := <-o.broken:
		klog.FromContext(ctx).Error(err, "Serving the kubelet by another driver name failed; retrying", "driver", o.driver)
		o.stopServing()
	default:
	}
	if o.helper != nil {
		return
	}
	podUID := n.s.config.PodUID
	if podUID == "" {
		podUID = n.s.config.DriverName // the name's own plugin may start at any time: its sockets are others
	}
	fatal := func(err error) {
		select {
		case o.broken <- err:
		default:
		}
	}
	status, err := n.s.newStatus(o.engine.Ledger)
	if err == nil {
		o.helper, err = n.s.kubelet.serve(ctx, n.s.client, o.driver, podUID, &plugin{
			claims: o.engine, record: o.engine.Ledger.Record, metrics: n.s.metrics, health: &n.s.health, claimEvents: n.s.claimEvents,
			status: status, inventory: n.inventory, fatal: fatal,
		})
	}
	n.log(ctx, o, "serve", err)
	if err != nil {
		return
	}
	o.startStatus(ctx, status)
	klog.FromContext(ctx).Info("Serving the kubelet by another driver name, until its claims are gone", "driver", o.driver)
}

// stopServing leaves a name to its own plugin, or to nobody.
func (o *otherName) stopServing() {
	o.helper.Stop()
	o.helper = nil
	if o.status != nil {
		o.endStatus()
		o.status, o.endStatus = nil, nil
	}
}

// sweep removes what is left of claims that were released without Unprepare. Without its sockets, the name may be another
// driver's.
func (o *otherName) sweep(ctx context.Context, s *service) {
	if o.helper != nil {
		o.status.Sweep(ctx)
		s.kubelet.metadata.sweep(ctx, &s.config, o.driver)
	}
}

// startStatus has the status of the name's claims written until endStatus.
func (o *otherName) startStatus(ctx context.Context, status *claimstatus.Writer) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { status.Run(ctx) })
	o.status, o.endStatus = status, func() { cancel(); running.Wait() }
	o.restoreStatus()
}

// restoreStatus corrects the status of the name's claims, once what their devices are is known.
func (o *otherName) restoreStatus() {
	if o.status != nil && o.engine.Ready() {
		o.status.Restore(o.engine.Ledger.Records())
	}
}

// log logs a problem with a name when it is another one than before.
func (n *otherNames) log(ctx context.Context, o *otherName, topic string, err error) {
	if now := message(err); now != o.reported[topic] {
		o.reported[topic] = now
		if err != nil {
			klog.FromContext(ctx).Error(err, "Problem with another driver name; retrying", "driver", o.driver)
		}
	}
}

// report writes Events of what is allocated under a name that has no plugin any more, and of its end.
func (n *otherNames) report(ctx context.Context, o *otherName, seen names.Observed) {
	if seen.Runs || seen.Published || !o.listed {
		return
	}
	var what []string
	for _, r := range o.engine.Ledger.OwnRecords() {
		var devices []string
		for i := range r.Devices {
			devices = append(devices, r.Devices[i].Device)
		}
		what = append(what, fmt.Sprintf("%s/%s (%s)", r.Claim.Namespace, r.Claim.Name, strings.Join(devices, ", ")))
	}
	const most = 8
	if more := len(what) - most; more > 0 {
		what = append(what[:most], fmt.Sprintf("and %d more", more))
	}
	now := strings.Join(what, ", ")
	was, known := o.reported["allocated"]
	if now == was {
		return
	}
	o.reported["allocated"] = now
	klog.FromContext(ctx).V(2).Info("Allocated under another driver name", "driver", o.driver, "claims", now)
	switch {
	case now == "":
		n.s.events.Note(reasonOtherNameReleased,
			fmt.Sprintf("No claim of driver %s (the name Cleave previously used on this node) has a GPU any more", o.driver))
	case !known || was == "":
		n.s.events.Note(reasonOtherName, fmt.Sprintf("Claims of driver %s (the name Cleave previously used on this node) have GPUs: %s. "+
			"Those devices are tainted until the claims' pods have ended", o.driver, now))
	}
}

// retire takes away the files of a name of which nothing is left, unless a plugin of that name starts just now. Where the
// state is still in use, it stays known.
func (n *otherNames) retire(ctx context.Context, o *otherName) {
	o.stopServing()
	gone, err := removeName(&n.s.config, o.driver)
	n.log(ctx, o, "retire", err)
	if err != nil || !gone {
		return
	}
	n.s.engine.RemovePeer(o.engine)
	n.mu.Lock()
	delete(n.byName, o.driver)
	n.mu.Unlock()
	klog.FromContext(ctx).Info("Nothing is left of another driver name: removed its files", "driver", o.driver, "dir", o.dir)
}

// ownFiles are Cleave's in the directory of a name, which may be another driver's, too. Records are removed by themselves.
var ownFiles = []string{names.Locks, "policy.json", "drained", "nvidia-cdi-hook", "cleave-memory-limit", sessionFile, statusDir, modesDir}

// removeName removes what Cleave keeps on the node under a name, and nothing else; not while a plugin of that name runs, or
// where there is a record. Records that were set aside as corrupt stay.
func removeName(c *Config, driver string) (gone bool, err error) {
	dir := filepath.Join(c.PluginsDir, driver)
	mark, err := acquire(dir)
	if err != nil {
		return false, err
	}
	defer mark.release()
	if !mark.alone() {
		return false, nil
	}
	claims, errClaims := records.OpenStore(store.NewDisk(), filepath.Join(dir, names.Claims))
	layouts, errLayouts := records.OpenLayouts(store.NewDisk(), filepath.Join(dir, names.Layouts))
	modes, errModes := records.OpenModes(store.NewDisk(), filepath.Join(dir, modesDir))
	if err := errors.Join(errClaims, errLayouts, errModes); err != nil {
		return false, err
	}
	uids, errClaims := claims.Names()
	gpus, errLayouts := layouts.Names()
	changes, errModes := modes.Names()
	if err := errors.Join(errClaims, errLayouts, errModes); err != nil || len(uids) > 0 || len(gpus) > 0 || len(changes) > 0 {
		return false, err
	}
	errs := []error{
		cdi.Remover{Dir: c.CDIDir, Driver: driver}.RemoveStatic(),
		removeRecords(filepath.Join(dir, names.Claims)), removeRecords(filepath.Join(dir, names.Layouts)),
	}
	if c.HookDir != "" {
		errs = append(errs, os.RemoveAll(filepath.Join(c.HookDir, driver)))
	}
	sockets, err := filepath.Glob(filepath.Join(dir, "dra-*.sock"))
	errs = append(errs, err)
	for _, path := range sockets { // of plugins that were killed
		uid := types.UID(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "dra-"), ".sock"))
		registration := kubeletplugin.RollingUpdateRegistrarSocketFile(c.RegistryDir, driver, uid)
		errs = append(errs, ignoreMissing(os.Remove(path)), ignoreMissing(os.Remove(filepath.Join(c.RegistryDir, registration))))
	}
	for _, file := range append(slices.Clone(ownFiles), names.Running) { // the lock last: it keeps plugins from starting
		errs = append(errs, os.RemoveAll(filepath.Join(dir, file)))
	}
	for _, d := range []string{metadataTarget(c, driver), filepath.Join(dir, metadataDir), dir} {
		_ = os.Remove(d) // stays where it is a mount, or another driver's
	}
	return true, errors.Join(errs...)
}

// leaveNode is for a plugin that was uninstalled: where nothing is left of other names, and no plugin of any name runs, what
// plugins of a node share goes, too.
func (s *service) leaveNode(ctx context.Context) {
	logger := klog.FromContext(ctx)
	for _, o := range s.names.all() {
		if gone, err := removeName(&s.config, o.driver); err != nil || !gone {
			logger.Info("Keeping the files of another driver name, which has claims or runs", "driver", o.driver, "err", err)
			return
		}
	}
	if !s.nodeLease.alone() {
		return
	}
	entries, err := os.ReadDir(s.config.nodeDir())
	errs := []error{err}
	for _, e := range entries {
		if e.Name() == sessionFile && keepsLayouts(&s.config) {
			continue // by it the next plugin knows the partitions of layouts for its own
		}
		errs = append(errs, os.RemoveAll(filepath.Join(s.config.nodeDir(), e.Name())))
	}
	_ = os.Remove(s.config.nodeDir()) // stays where it is a mount
	if err := errors.Join(errs...); err != nil {
		logger.Error(err, "Removing what plugins of the node share failed")
	}
}

// message of an error; empty where there is none.
func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (o *otherName) compatible() bool { return o.driver == nvidia.DriverName }
