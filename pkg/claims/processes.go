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

// consumersOf are the pods that have reserved a claim, and whether something else has, too: such as a PodGroup of scheduling.k8s.io
// (feature DRAWorkloadResourceClaims), which does not say which its pods are.
func consumersOf(claim *resourceapi.ResourceClaim) (pods []types.UID, others bool) {
	for _, c := range claim.Status.ReservedFor {
		if c.APIGroup == "" && c.Resource == "pods" {
			pods = append(pods, c.UID)
		} else {
			others = true
		}
	}
	return pods, others
}

// notePods puts on record what has reserved a claim since it was prepared: the kubelet prepares a claim for its first pod alone.
func (p *Preparer) notePods(ctx context.Context, r *records.Record, claim *resourceapi.ResourceClaim) error {
	pods, others := consumersOf(claim)
	missing := slices.DeleteFunc(pods, func(uid types.UID) bool { return slices.Contains(r.Pods, uid) })
	if len(missing) == 0 && (r.OtherConsumers || !others) {
		return nil
	}
	return p.Ledger.locked(ctx, r, func(now *records.Record) error {
		if !sameDevices(now, r) {
			return nil // prepared anew or unprepared since
		}
		noted := now.Clone()
		noted.OtherConsumers = now.OtherConsumers || others
		noted.Pods = append(noted.Pods, slices.DeleteFunc(missing, func(uid types.UID) bool { return slices.Contains(noted.Pods, uid) })...)
		noted.Pods = noted.Pods[max(0, len(noted.Pods)-maxPods):]
		return p.Ledger.write(noted)
	})
}

// users are who uses what claims have: the processes of their pods, and those that the driver lists.
type users struct {
	processes Processes // nil where the driver's list is all there is
	gate      *gate
	ledger    *Ledger
}

func (p *Preparer) users() users { return users{p.processes, p.gate, p.Ledger} }

// checkIdle fails unless it is certain that a claim's GPUs are not in use. What ends is a claim that is gone from the API server:
// as long as a process of its pods runs, also one that has no context on a GPU now, the claim keeps what it has.
//
// For the rest the driver is asked about whole GPUs. Partitions need no such check: one with a process in it cannot be
// destroyed. Nor do GPUs that others share in the same way, whose processes they may be, or an MPS server that is to end, and
// its clients with it. Processes of other pods, such as monitoring agents, count only if the driver lists them: agents have
// all GPUs open all the time.
func (u users) checkIdle(ctx context.Context, r *records.Record, ends bool) error {
	b := u.gate.backend.Load()
	if b.hardware == nil {
		return fmt.Errorf("cannot find out whether they are in use: %w", b.reason)
	}
	seen := false
	if ends && u.processes != nil {
		if err := u.checkEnded(ctx, r); err != nil {
			return err
		}
		seen = len(r.Pods) > 0 || r.OtherConsumers
	}
	for i := range r.Devices {
		if err := u.checkDeviceIdle(ctx, b, r, &r.Devices[i], ends, seen); err != nil {
			return err
		}
	}
	return nil
}

// checkEnded fails unless it is certain that no process of a claim's pods runs any more. Where they are not all known, no process
// may have been given the claim, and the driver may list none on its GPUs.
func (u users) checkEnded(ctx context.Context, r *records.Record) error {
	if u.processes == nil {
		return nil
	}
	pids, err := u.processes.OfPods(ctx, r.Pods)
	if err == nil && len(pids) == 0 && r.OtherConsumers {
		pids, err = u.processes.OfClaim(ctx, r.Claim.Namespace, r.Claim.Name)
	}
	if err != nil {
		return fmt.Errorf("cannot find out whether its pods still run: %w", err)
	}
	if len(pids) > 0 {
		return fmt.Errorf("its pods still have processes %v: %w", pids, gpu.ErrInUse)
	}
	if r.OtherConsumers {
		return u.checkUnused(ctx, r)
	}
	return nil
}

// checkUnused fails if the driver lists processes on a claim's GPUs, or does not answer.
func (u users) checkUnused(ctx context.Context, r *records.Record) error {
	b := u.gate.backend.Load()
	if b.hardware == nil {
		return fmt.Errorf("cannot find out whether its GPUs are in use: %w", b.reason)
	}
	for i := range r.Devices {
		if err := u.checkDeviceIdle(ctx, b, r, &r.Devices[i], true, true); err != nil {
			return err
		}
	}
	return nil
}

// podsState is what is known of the processes of a claim's pods.
type podsState int

const (
	// podsUnseen: the kubelet is believed that they have ended.
	podsUnseen podsState = iota
	podsEnded
	// podsLeft: there are some, or there may be.
	podsLeft
)

const (
	// endPatience bounds the wait for processes that end while a claim is unprepared. A container that is killed may take
	// seconds, as the driver frees its memory.
	endPatience = 10 * time.Second
	// endRetry is the time between the first two looks, maxEndRetry between two later ones. No event says that the processes of a pod
	// have ended.
	endRetry, maxEndRetry = 50 * time.Millisecond, time.Second
)

// awaitEnded waits for the end of the processes of a claim's pods. The kubelet does so, too, before it has a claim unprepared, but
// for those that the container runtime calls stopped all the same, and for pods that are gone from the API server: once a minute it
// unprepares the claims of all pods that it takes for inactive, and a pod that was deleted by force is inactive at once, while its
// containers still end (reconcileLoop of k8s.io/kubernetes/pkg/kubelet/cm/dra v1.37.1, whose activePods are those of the pod
// manager).
//
// A pod must not stay for ever, and one that was deleted by force is not there to wait for: the claim is released though its pods have
// left processes, and what it had is not allocated again before those have ended. What is left of a pod is killed by the kubelet only
// after that (SyncTerminatedPod, tryKillingCgroupProcesses), and a kill does not end a process that hangs in the driver. Where
// processes cannot be seen, the kubelet is believed.
func (u users) awaitEnded(ctx context.Context, r *records.Record) (podsState, error) {
	if u.processes == nil || len(r.Pods) == 0 && !r.OtherConsumers {
		return podsUnseen, nil
	}
	patience, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	logger := klog.FromContext(ctx)
	for wait := endRetry; ; wait = min(wait*3/2, maxEndRetry) {
		err := u.checkEnded(ctx, r)
		switch {
		case err == nil:
			return podsEnded, nil
		case isUnseen(err):
			logger.Error(err, "Unpreparing a claim on the kubelet's word alone", "claim", r.Claim)
			return podsUnseen, nil
		case r.State == records.Releasing: // the kubelet asks again
			return podsLeft, nil
		}
		retry := time.NewTimer(wait)
		select {
		case <-retry.C:
			continue
		case <-patience.Done():
			retry.Stop()
		}
		if ctx.Err() != nil {
			return podsLeft, fmt.Errorf("claim %s was to be unprepared, and keeps its GPUs %v: %w", r.Claim, r.GPUs(), err)
		}
		logger.Error(err, "Processes are left of a claim that is unprepared: what it had is not allocated again before they have ended",
			"claim", r.Claim, "gpus", r.GPUs())
		return podsLeft, nil
	}
}

// isUnseen reports whether the processes of pods cannot be seen at all, by how the plugin was installed.
func isUnseen(err error) bool {
	return errors.Is(err, processes.ErrHidden) || errors.Is(err, fs.ErrPermission)
}

// checkLeft fails if pods that had the claim before have left processes, and what its record lists would be freed or be given to
// its next pods.
func (a *preparation) checkLeft(ctx context.Context, have *records.Record) error {
	moved := have.State == records.Prepared && !covers(gpuNames(a.devices), have.GPUs())
	if have.State != records.Releasing && !moved {
		return nil
	}
	if err := a.users().checkEnded(ctx, have); err != nil && !isUnseen(err) {
		return fmt.Errorf("the claim was released from GPUs %v, and cannot be prepared again yet: %w", have.GPUs(), err)
	}
	return nil
}

// checkDeviceIdle is checkIdle for one device; seen says that no process of the claim's pods runs.
func (u users) checkDeviceIdle(ctx context.Context, b *backend, r *records.Record, d *records.Device, ends, seen bool) error {
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
	if d.Share != nil && (ends && d.Share.Kind == gpu.MPS || u.ledger.index.on(d.GPU, r.Claim.UID).sharing(d.Share.Kind)) {
		return nil
	}
	pids, err := b.hardware.Processes(ctx, g.PCI)
	switch {
	case takenOut(err):
		return nil
	case errors.Is(err, gpu.ErrNotSupported) && (seen || u.processes == nil):
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
