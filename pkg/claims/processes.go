// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/processes"
	"github.com/cleave-dra/cleave/pkg/records"
)

// maxPods bounds the pods that a record keeps: twice as many as can reserve a claim at a time
// (resource/v1, ResourceClaimReservedForMaxSize).
const maxPods = 2 * resourceapi.ResourceClaimReservedForMaxSize

// podsOf are the pods that have reserved a claim.
func podsOf(claim *resourceapi.ResourceClaim) []types.UID {
	var pods []types.UID
	for _, c := range claim.Status.ReservedFor {
		if c.APIGroup == "" && c.Resource == "pods" {
			pods = append(pods, c.UID)
		}
	}
	return pods
}

// notePods puts on record which pods have reserved a claim since it was prepared: the kubelet prepares a claim for its first
// pod alone.
func (p *Preparer) notePods(ctx context.Context, r *records.Record, claim *resourceapi.ResourceClaim) error {
	missing := slices.DeleteFunc(podsOf(claim), func(uid types.UID) bool { return slices.Contains(r.Pods, uid) })
	if len(missing) == 0 {
		return nil
	}
	return p.Ledger.locked(ctx, r, func(now *records.Record) error {
		if !sameDevices(now, r) {
			return nil // prepared anew or unprepared since
		}
		noted := now.Clone()
		noted.Pods = append(noted.Pods, slices.DeleteFunc(missing, func(uid types.UID) bool { return slices.Contains(noted.Pods, uid) })...)
		noted.Pods = noted.Pods[max(0, len(noted.Pods)-maxPods):]
		return p.Ledger.write(noted)
	})
}

// checkIdle fails unless it is certain that a claim's GPUs are not in use. What ends is a claim that is gone from the API server:
// as long as a process of its pods runs, also one that has no context on a GPU now, the claim keeps what it has.
//
// For the rest the driver is asked about whole GPUs. Partitions need no such check: one with a process in it cannot be
// destroyed. Nor do GPUs that others share in the same way, whose processes they may be, or an MPS server that is to end, and
// its clients with it. Processes of other pods, such as monitoring agents, count only if the driver lists them: agents have
// all GPUs open all the time.
func (p *Preparer) checkIdle(ctx context.Context, r *records.Record, ends bool) error {
	b := p.backend.Load()
	if b.hardware == nil {
		return fmt.Errorf("cannot find out whether they are in use: %w", b.reason)
	}
	seen := false
	if ends && p.processes != nil {
		if err := checkEnded(ctx, p.processes, r); err != nil {
			return err
		}
		seen = len(r.Pods) > 0
	}
	for i := range r.Devices {
		if err := p.checkDeviceIdle(ctx, b, r, &r.Devices[i], ends, seen); err != nil {
			return err
		}
	}
	return nil
}

// checkEnded fails unless it is certain that no process of a claim's pods runs any more.
func checkEnded(ctx context.Context, table Processes, r *records.Record) error {
	pids, err := table.OfPods(ctx, r.Pods)
	if err != nil {
		return fmt.Errorf("cannot find out whether its pods still run: %w", err)
	}
	if len(pids) > 0 {
		return fmt.Errorf("its pods still have processes %v: %w", pids, gpu.ErrInUse)
	}
	return nil
}

const (
	// endPatience bounds the wait for processes that end while a claim is unprepared. A container that is killed may take
	// seconds, as the driver frees its memory.
	endPatience = 10 * time.Second
	// endRetry is the time between two looks. No event says that the processes of a pod have ended.
	endRetry = 50 * time.Millisecond
)

// awaitEnded refuses to unprepare a claim whose pod is gone from the API server and still runs. The kubelet asks for that: once
// a minute it unprepares the claims of all pods that it takes for inactive, and a pod that was deleted by force is inactive at
// once, while its containers still end (reconcileLoop of k8s.io/kubernetes/pkg/kubelet/cm/dra v1.37.1, whose activePods are
// those of the pod manager). The kubelet unprepares it again when the containers have ended.
//
// In these cases the kubelet is believed in the end, as a pod and its claim must not stay for ever: no processes can be seen,
// or the API server has the claim reserved for the pod. Then nobody else is allocated what it has, and what is left of the pod
// is killed by the kubelet once its claims are unprepared (SyncTerminatedPod, tryKillingCgroupProcesses).
func awaitEnded(ctx context.Context, table Processes, api API, r *records.Record) error {
	if table == nil || len(r.Pods) == 0 {
		return nil
	}
	patience, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	retry := time.NewTicker(endRetry)
	defer retry.Stop()
	for {
		err := checkEnded(ctx, table, r)
		if err == nil {
			return nil
		}
		if errors.Is(err, processes.ErrHidden) || errors.Is(err, fs.ErrPermission) {
			klog.FromContext(ctx).Error(err, "Unpreparing a claim on the kubelet's word alone", "claim", r.Claim)
			return nil
		}
		select {
		case <-patience.Done():
			if ctx.Err() == nil && errors.Is(err, gpu.ErrInUse) && reserved(ctx, api, r) {
				klog.FromContext(ctx).Error(err, "Unpreparing a claim whose containers have ended, by the kubelet's word", "claim", r.Claim)
				return nil
			}
			return fmt.Errorf("claim %s was to be unprepared, and keeps its GPUs %v: %w", r.Claim, r.GPUs(), err)
		case <-retry.C:
		}
	}
}

// reserved reports whether the API server has a claim reserved for a pod of its record.
func reserved(ctx context.Context, api API, r *records.Record) bool {
	if api == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	claim, err := api.Claim(ctx, r.Claim.Namespace, r.Claim.Name)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not read a claim that is to be unprepared from the API server", "claim", r.Claim)
	}
	return err == nil && claim != nil && claim.UID == r.Claim.UID &&
		slices.ContainsFunc(podsOf(claim), func(uid types.UID) bool { return slices.Contains(r.Pods, uid) })
}

// checkDeviceIdle is checkIdle for one device; seen says that no process of the claim's pods runs.
func (p *Preparer) checkDeviceIdle(ctx context.Context, b *backend, r *records.Record, d *records.Device, ends, seen bool) error {
	if d.AdminAccess || d.Partition != nil {
		return nil
	}
	g, err := locate(b, d)
	if err != nil {
		return fmt.Errorf("cannot find out whether it is in use: %w", err)
	}
	if g == nil {
		return nil // a GPU that is gone is used by nobody
	}
	if d.Share != nil && (ends && d.Share.Kind == gpu.MPS || p.Ledger.index.on(d.GPU, r.Claim.UID).sharing(d.Share.Kind)) {
		return nil
	}
	pids, err := b.hardware.Processes(ctx, g.PCI)
	switch {
	case takenOut(err):
		return nil
	case errors.Is(err, gpu.ErrNotSupported) && (seen || p.processes == nil):
		return nil
	case errors.Is(err, gpu.ErrNotSupported):
		return fmt.Errorf("cannot find out whether GPU %s is in use: its driver lists no processes, and the claim's pods are not known: %w",
			d.GPU, err)
	case err != nil:
		return err
	case len(pids) > 0:
		return fmt.Errorf("GPU %s is used by processes %v: %w", d.GPU, pids, gpu.ErrInUse)
	}
	return nil
}
