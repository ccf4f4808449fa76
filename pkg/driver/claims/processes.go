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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/processes"
)

// maxPods bounds the pods that a record keeps: twice the number of pods that can reserve a claim at a time
// (resource/v1, ResourceClaimReservedForMaxSize).
const maxPods = 2 * resourceapi.ResourceClaimReservedForMaxSize

// consumersOf returns the pods that have reserved a claim, and whether it has other consumers, such as a PodGroup of scheduling.k8s.io
// (feature DRAWorkloadResourceClaims), whose pods are not listed.
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

// ownerPod returns the pod that a claim was generated for, from a template or for extended resources; empty for a standalone claim.
func ownerPod(claim *resourceapi.ResourceClaim) types.UID {
	owner := metav1.GetControllerOfNoCopy(claim)
	if owner == nil || owner.APIVersion != "v1" || owner.Kind != "Pod" {
		return ""
	}
	return owner.UID
}

// mayHaveOthers reports whether pods that are not on a claim's record may have used it. The kubelet prepares a claim only for its first
// pod; others come and go, possibly force-deleted between two reconciles, and neither the kubelet nor the API server remembers
// them. Only a claim that was generated for a pod is exclusive to that pod, unless another pod names it as well.
func mayHaveOthers(r *records.Record) bool {
	return r.OtherConsumers || r.OwnerPod == "" || !slices.Equal(r.Pods, []types.UID{r.OwnerPod})
}

// notePods records the consumers that have reserved a claim since it was prepared: the kubelet prepares a claim only for its first pod.
func (p *Preparer) notePods(ctx context.Context, r *records.Record, claim *resourceapi.ResourceClaim) error {
	if noting(r, claim) == nil {
		return nil
	}
	return p.Ledger.locked(ctx, r, func(now *records.Record) error {
		if !sameDevices(now, r) {
			return nil // prepared again or unprepared meanwhile
		}
		return note(p.Ledger, now, claim)
	})
}

// note is notePods for a caller that holds the locks of the record's GPUs.
func note(l *Ledger, r *records.Record, claim *resourceapi.ResourceClaim) error {
	if noted := noting(r, claim); noted != nil {
		return l.write(noted)
	}
	return nil
}

// noting returns a record with the claim's consumers added; nil if they are on record.
func noting(r *records.Record, claim *resourceapi.ResourceClaim) *records.Record {
	pods, others := consumersOf(claim)
	noted := r.Clone()
	noted.Pods, noted.OtherConsumers = joined(r.Pods, pods), r.OtherConsumers || others
	if slices.Equal(noted.Pods, r.Pods) && noted.OtherConsumers == r.OtherConsumers {
		return nil
	}
	return noted
}

// joined adds pods to those of a record, and keeps the latest ones if there are too many. The others still count, see mayHaveOthers.
func joined(pods, later []types.UID) []types.UID {
	all := slices.Clone(pods)
	for _, uid := range later {
		if !slices.Contains(all, uid) {
			all = append(all, uid)
		}
	}
	return all[max(0, len(all)-maxPods):]
}

// users finds processes that use the devices of claims: processes of their pods, and those that the driver lists.
type users struct {
	processes Processes // nil to rely on the driver's list alone
	gate      *gate
	ledger    *Ledger
}

func (p *Preparer) users() users { return users{p.processes, p.gate, p.Ledger} }

// checkIdle fails unless a claim's GPUs are certainly not in use. ends means that the claim is gone from the API server:
// it keeps its devices as long as a process of its pods runs, even one without a context on a GPU at the moment.
//
// Otherwise the driver is asked about whole GPUs. Partitions need no such check: a partition with a process in it cannot be
// destroyed. Nor do GPUs that others share in the same way, as the processes may be theirs, or GPUs of an MPS server that is about to
// end, together with its clients. Processes of other pods, such as monitoring agents, count only if the driver lists them: agents have
// all GPUs open all the time.
func (u users) checkIdle(ctx context.Context, r *records.Record, ends bool) error {
	b := u.gate.backend.Load()
	if b.hardware == nil {
		return fmt.Errorf("cannot find out whether they are in use: %w", b.reason)
	}
	seen, passedOn := false, []*records.Device(nil)
	if ends && u.processes != nil {
		if err := u.checkEnded(ctx, r); err != nil {
			return err
		}
		seen = len(r.Pods) > 0 || r.OtherConsumers
		passedOn, _ = u.passedOn(ctx, r) // release keeps these alone
	}
	for i := range r.Devices {
		if slices.Contains(passedOn, &r.Devices[i]) {
			continue
		}
		if err := u.checkDeviceIdle(ctx, b, r, &r.Devices[i], ends, seen); err != nil {
			return err
		}
	}
	return nil
}

// checkEnded fails unless all processes of a claim's pods have certainly ended. If some pods may be unknown, no container with a
// process may have been given the claim. That requires inspecting all containers; most claims, generated for one pod, do not need it.
// If some pods are certainly unknown, the driver must list no process on the claim's GPUs either.
func (u users) checkEnded(ctx context.Context, r *records.Record) error {
	if u.processes == nil {
		return nil
	}
	pids, err := u.processes.OfPods(ctx, r.Pods)
	if err == nil && len(pids) == 0 && mayHaveOthers(r) {
		if pids, err = u.ofClaim(ctx, r); isUnseen(err) && !r.OtherConsumers {
			err = nil // the pods on record have ended, and there is no sign of others
		}
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

// checkFree is checkEnded, and fails as well if a process of another pod keeps one of the claim's GPUs, see passedOn.
func (u users) checkFree(ctx context.Context, r *records.Record) error {
	if err := u.checkEnded(ctx, r); err != nil {
		return err
	}
	_, err := u.passedOn(ctx, r)
	return err
}

// passedOn returns those whole GPUs, which nobody shares with the claim, on which the driver lists a process of a pod although the claim's
// own have ended, and an error that names the processes: a pod can pass its open device files on to another, by a Unix socket, and the
// device cgroup is asked at open only. Processes of the host, such as an X server, and of pods with admin access do not count. A GPU that
// is out of reach keeps no pod.
func (u users) passedOn(ctx context.Context, r *records.Record) (found []*records.Device, used error) {
	b := u.gate.backend.Load()
	if u.processes == nil || b.hardware == nil {
		return nil, nil
	}
	var errs []error
	for i := range r.Devices {
		d := &r.Devices[i]
		if d.AdminAccess || d.Partition != nil || d.Share != nil || d.Released {
			continue
		}
		g, err := locate(b, d)
		if err != nil || g == nil {
			continue
		}
		pids, err := b.hardware.Processes(ctx, g.PCI)
		if err != nil {
			continue
		}
		var holders []Holder
		for _, process := range u.processes.InPods(pids) {
			if !u.ledger.index.on(d.GPU, r.Claim.UID).watchedBy(process.Pod) {
				holders = append(holders, Holder(process))
			}
		}
		if len(holders) > 0 {
			found = append(found, d)
			errs = append(errs, fmt.Errorf("GPU %s is used by %s: %w", d.GPU, listHolders(holders), gpu.ErrInUse))
		}
	}
	return found, errors.Join(errs...)
}

// ofClaim lists processes of containers that were given a claim. They are found by its name, which a later claim may have by now:
// processes of that claim's pods do not count.
func (u users) ofClaim(ctx context.Context, r *records.Record) ([]int, error) {
	pids, err := u.processes.OfClaim(ctx, r.Claim.Namespace, r.Claim.Name)
	if err != nil || len(pids) == 0 {
		return nil, err
	}
	var later []types.UID
	for _, o := range u.ledger.index.claims() {
		if o.Claim.Namespace == r.Claim.Namespace && o.Claim.Name == r.Claim.Name && o.Claim.UID != r.Claim.UID {
			later = append(later, o.Pods...)
		}
	}
	theirs, err := u.processes.OfPods(ctx, later)
	return slices.DeleteFunc(pids, func(pid int) bool { return slices.Contains(theirs, pid) }), err
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

// podsState is the known state of the processes of a claim's pods.
type podsState int

const (
	// podsUnseen: they cannot be seen; the kubelet reports that they have ended.
	podsUnseen podsState = iota
	podsEnded
	// podsLeft: some are left, or may be left.
	podsLeft
)

const (
	// endTimeout bounds the wait for processes to end while a claim is unprepared. A killed container may take
	// several seconds, as the driver frees its memory.
	endTimeout = 10 * time.Second
	// endRetry is the time between the first two checks, maxEndRetry the longest time between two checks. No event reports that the
	// processes of a pod have ended.
	endRetry, maxEndRetry = 50 * time.Millisecond, time.Second
)

// awaitEnded waits for the processes of a claim's pods to end. The kubelet also waits before it unprepares a claim, except for
// processes that remain although the container runtime reports them stopped, and for pods that are gone from the API server: once a
// minute it unprepares the claims of all pods that it considers inactive, and a force-deleted pod is inactive at once, while its
// containers are still ending (reconcileLoop of k8s.io/kubernetes/pkg/kubelet/cm/dra v1.37.1, whose activePods are those of the pod
// manager).
//
// A pod must not stay forever, and a force-deleted one cannot wait: the claim is released although its pods have
// left processes, but its devices are not allocated again before those have ended. The kubelet kills remaining processes of a pod only
// after that (SyncTerminatedPod, tryKillingCgroupProcesses), and a kill does not end a process that hangs in the driver. If
// processes cannot be seen, the kubelet is trusted.
func (u users) awaitEnded(ctx context.Context, r *records.Record) (podsState, error) {
	if u.processes == nil || len(r.Pods) == 0 && !r.OtherConsumers {
		return podsUnseen, nil
	}
	waiting, cancel := context.WithTimeout(ctx, endTimeout)
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
		case r.State == records.Releasing || r.Unprepared: // it has been waited for
			return podsLeft, nil
		}
		retry := time.NewTimer(wait)
		select {
		case <-retry.C:
			continue
		case <-waiting.Done():
			retry.Stop()
		}
		if ctx.Err() != nil {
			return podsLeft, fmt.Errorf("cannot unprepare claim %s yet; it still holds GPUs %v: %w", r.Claim, r.GPUs(), err)
		}
		logger.Error(err, "Pods of an unprepared claim have left processes; its devices are not allocated again before those have ended",
			"claim", r.Claim, "gpus", r.GPUs())
		return podsLeft, nil
	}
}

// ended returns the state of the processes of a claim's pods now: an error if some are left or may be left. Without pods on record
// nothing was seen of them.
func (u users) ended(ctx context.Context, r *records.Record) (podsState, error) {
	err := u.checkEnded(ctx, r)
	unseen := isUnseen(err)
	if err != nil && !unseen {
		return podsLeft, err
	}
	if unseen || u.processes == nil || len(r.Pods) == 0 && !r.OtherConsumers {
		return podsUnseen, nil
	}
	return podsEnded, nil
}

// isUnseen reports whether the processes of pods cannot be seen at all, because of how the plugin was installed.
func isUnseen(err error) bool {
	return errors.Is(err, processes.ErrHidden) || errors.Is(err, fs.ErrPermission)
}

// checkLeft fails if earlier pods of the claim have left processes and the devices of its record would be freed or given to
// its next pods. Running pods are not earlier ones as long as the claim's allocation is unchanged, whatever became of its devices.
func (a *preparation) checkLeft(ctx context.Context, have *records.Record) error {
	if have.State != records.Releasing && sameAllocation(allocationOf(have), allocationOf(a.toRecord())) {
		return nil
	}
	if err := a.users().checkFree(ctx, have); err != nil && !isUnseen(err) {
		return fmt.Errorf("the claim was released from GPUs %v but cannot be prepared again yet: %w", have.GPUs(), err)
	}
	return nil
}

// checkDeviceIdle is checkIdle for one device; seen means that no process of the claim's pods is running.
func (u users) checkDeviceIdle(ctx context.Context, b *backend, r *records.Record, d *records.Device, ends, seen bool) error {
	if d.AdminAccess || d.Partition != nil || d.Released {
		return nil
	}
	g, err := locate(b, d)
	if err != nil {
		return fmt.Errorf("cannot find out whether it is in use: %w", err)
	}
	if g == nil {
		return nil // a GPU that is gone is not in use
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
