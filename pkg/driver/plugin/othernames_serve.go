// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/cdi"
	"github.com/cleave-dra/cleave/pkg/driver/cdi/hook"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/names"
)

// taken reports whether another vendor's driver serves the kubelet under a name that is not reserved for Cleave.
func (n *otherNames) taken(ctx context.Context, o *otherName) bool {
	c := n.s.nameConflict()
	c.driver = o.driver
	err := c.findPlugin(ctx)
	n.log(ctx, o, "taken", err)
	return err != nil
}

// serve serves the kubelet under a name as well: pods of its claims end, and those whose claims are allocated start. Nothing is
// published under it, so nothing new is allocated.
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
		podUID = n.s.config.DriverName // the name's own plugin may start at any time: it uses other sockets
	}
	fatal := func(err error) {
		select {
		case o.broken <- err:
		default:
		}
	}
	named := n.s.engine.Named(o.driver)
	status, err := n.s.newStatus(named)
	if err == nil {
		o.helper, err = n.s.kubelet.serve(ctx, n.s.client, o.driver, podUID, &plugin{
			claims: named, record: named.Record, metrics: n.s.metrics, health: &n.s.health, claimEvents: n.s.claimEvents,
			status: status, inventory: n.inventory, fatal: fatal,
		})
	}
	n.log(ctx, o, "serve", err)
	if err != nil {
		return
	}
	o.status, o.endStatus = status, background(ctx, status.Run)
	klog.FromContext(ctx).Info("Serving the kubelet by another driver name, until its claims are gone", "driver", o.driver)
}

// stopServing leaves a name to its own plugin, or unserved.
func (o *otherName) stopServing() {
	o.helper.Stop()
	o.helper = nil
	if o.status != nil {
		o.endStatus()
		o.status, o.endStatus = nil, nil
	}
	o.restored = false
}

// restoreStatus corrects the status of a name's claims once their devices are known.
func (n *otherNames) restoreStatus(o *otherName) {
	ready := o.status != nil && n.s.engine.Ready() && n.s.engine.LacksCDI(o.driver) == nil
	if ready && !o.restored {
		o.status.Restore(n.s.engine.Named(o.driver).Records())
	}
	o.restored = ready
}

// sweep periodically cleans up after claims that were released without Unprepare. Without its sockets, the name may be
// another driver's.
func (n *otherNames) sweep(ctx context.Context, o *otherName) {
	if now := time.Now(); o.helper != nil && now.After(o.nextSweep) {
		o.nextSweep = now.Add(n.s.config.ReconcileEvery)
		o.status.Sweep(ctx)
		n.s.kubelet.metadata.sweep(ctx, &n.s.config, o.driver)
	}
}

// log logs a problem with a name when it has changed.
func (n *otherNames) log(ctx context.Context, o *otherName, topic string, err error) {
	if now := message(err); now != o.reported[topic] {
		o.reported[topic] = now
		if err != nil {
			klog.FromContext(ctx).Error(err, "Problem with another driver name; retrying", "driver", o.driver)
		}
	}
}

// report writes Events about allocations under a name without a plugin, and about the end of the last one.
func (n *otherNames) report(ctx context.Context, o *otherName, seen names.Observed) {
	if seen.Runs || seen.Published || !seen.Listed {
		return
	}
	var what []string
	for _, r := range claims.Under(o.driver, n.s.engine.Ledger.Allocations()) {
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

// retire removes the files of a name of which nothing is left, unless a plugin of that name is starting. If they are
// still in use, the name stays known.
func (n *otherNames) retire(ctx context.Context, o *otherName) {
	o.stopServing()
	n.s.engine.DropCDI(o.driver)
	gone, err := retireName(ctx, &n.s.config, o.driver)
	n.log(ctx, o, "retire", err)
	o.retiring.note(err == nil && gone)
	if err != nil || !gone {
		return
	}
	n.s.engine.Ledger.Names.Remove(o.driver)
	n.mu.Lock()
	delete(n.byName, o.driver)
	n.mu.Unlock()
	klog.FromContext(ctx).Info("Nothing is left of another driver name: removed its files", "driver", o.driver, "dir", o.dir)
}

// retireName is removeName, but not while a plugin of that name runs, or where there is a record of its claims.
func retireName(ctx context.Context, c *Config, driver string) (gone bool, err error) {
	mark, err := acquire(filepath.Join(c.PluginsDir, driver))
	if err != nil {
		return false, err
	}
	defer mark.release()
	if !mark.alone() {
		return false, nil
	}
	all, corrupt, err := records.List(store.Disk{}, filepath.Join(c.nodeDir(), records.ClaimsDir))
	if err != nil || len(corrupt) > 0 || len(claims.Under(driver, all)) > 0 {
		return false, err
	}
	return true, removeName(ctx, c, driver)
}

// ownFiles are Cleave's in the directory of a name, which may be another driver's, too. The lock is the last: it keeps plugins from
// starting.
var ownFiles = []string{policy.ActiveFile, releasedFile, hook.MemoryLimit, statusDir, names.Running}

// removeName removes what Cleave keeps on the node under a name, and nothing else.
func removeName(ctx context.Context, c *Config, driver string) error {
	dir := filepath.Join(c.PluginsDir, driver)
	errs := []error{cdi.Remover{Dir: c.CDIDir, Driver: driver}.RemoveStatic()}
	if c.HookDir != "" {
		errs = append(errs, os.RemoveAll(filepath.Join(c.HookDir, driver)))
	}
	errs = append(errs, removeDeadSockets(ctx, c, driver))
	for _, file := range ownFiles {
		interrupted, err := filepath.Glob(filepath.Join(dir, "."+file+"*")) // interrupted writes of it
		errs = append(errs, err)
		for _, path := range append(interrupted, filepath.Join(dir, file)) {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	for _, d := range []string{metadataTarget(c, driver), filepath.Join(dir, metadataDir), filepath.Join(dir, formerMetadataDir), dir} {
		_ = os.Remove(d) // stays if it is a mount, or another driver's
	}
	return errors.Join(errs...)
}

// removeDeadSockets removes the sockets of plugins that were killed, those of their registration with the kubelet included.
func removeDeadSockets(ctx context.Context, c *Config, driver string) error {
	sockets, err := filepath.Glob(filepath.Join(c.PluginsDir, driver, "dra-*.sock"))
	errs := []error{err}
	for _, path := range sockets {
		if isListening(ctx, path) {
			continue // another driver's
		}
		uid := types.UID(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "dra-"), ".sock"))
		registration := kubeletplugin.RollingUpdateRegistrarSocketFile(c.RegistryDir, driver, uid)
		// Its own socket last: after a kill in between, the name leads to the other one again.
		errs = append(errs, ignoreMissing(os.Remove(filepath.Join(c.RegistryDir, registration))), ignoreMissing(os.Remove(path)))
	}
	return errors.Join(errs...)
}

// message returns the text of an error; empty for nil.
func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (o *otherName) compatible() bool { return o.driver == nvidia.DriverName }
