// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"testing"
	"testing/synctest"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/processes"
)

// podProcesses are the processes of a node's pods.
type podProcesses struct {
	pids map[types.UID][]int
	err  error
}

func (p *podProcesses) OfPods(_ context.Context, pods []types.UID) ([]int, error) {
	var found []int
	for _, uid := range pods {
		found = append(found, p.pids[uid]...)
	}
	return found, p.err
}

// The kubelet prepares a claim for its first pod; others that share it are found in the API server.
func TestReconcile_NotesPods(t *testing.T) {
	b := newBed(t)
	seen := &podProcesses{pids: map[types.UID][]int{}}
	b.processes = seen
	claim := claimOn("a", 1)
	mustPrepare(t, b.Preparer, claim)
	reserve := func(uid types.UID) {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: string(uid), UID: uid})
	}
	reserve("second")
	claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{APIGroup: "x", Resource: "pods", UID: "no-pod"})
	b.Reconcile(t.Context(), &fakeAPI{claims: claimList(claim)})
	r, err := b.Ledger.store.Read("a")
	must(t, err)
	equal(t, "pods", []types.UID{"pod-uid", "second"}, r.Pods)
	for i := range 2 * maxPods {
		claim.Status.ReservedFor = nil
		reserve(types.UID(fmt.Sprint(i)))
		b.Reconcile(t.Context(), &fakeAPI{claims: claimList(claim)})
	}
	if got := b.Ledger.index.get("a").Pods; len(got) != maxPods || !slices.Contains(got, types.UID(fmt.Sprint(2*maxPods-1))) {
		t.Errorf("%d pods on record, want the latest %d", len(got), maxPods)
	}
	seen.pids["1000"] = []int{7}
	b.Reconcile(t.Context(), &fakeAPI{})
	equal(t, "records while another pod runs", list(line("a", 1)), onDisk(t, b.dir))
}

// The kubelet unprepares the claims of pods that it takes for inactive, also while their containers run.
func TestUnprepare_ProcessesOfPods(t *testing.T) {
	claim := claimOn("a", 1)
	running := &podProcesses{pids: map[types.UID][]int{"pod-uid": {7}}}
	another := &podProcesses{pids: map[types.UID][]int{"another": {7}}}
	tests := map[string]struct {
		processes Processes
		// onGPU are the processes that the driver lists, unless it fails.
		onGPU []int
		err   error
		admin bool // the other pod has admin access
		kept  bool
	}{
		"running":                              {processes: running, kept: true},
		"another's":                            {processes: another},
		"ends meanwhile":                       {processes: &endingProcesses{looks: 3}},
		"not to be seen":                       {processes: &podProcesses{err: processes.ErrHidden}},
		"not to be read, as a profile says so": {processes: &podProcesses{err: &fs.PathError{Op: "open", Err: fs.ErrPermission}}},
		"nobody who looks":                     {},
		"another's on the GPU":                 {processes: another, onGPU: []int{7}, kept: true},
		"another's on the GPU, which is lost":  {processes: another, onGPU: []int{7}, err: gpu.ErrLost},
		"an administrator's on the GPU":        {processes: another, onGPU: []int{7}, admin: true},
		"the host's on the GPU":                {processes: another, onGPU: []int{8}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				b.processes, b.api = test.processes, &fakeAPI{}
				mustPrepare(t, b.Preparer, claim)
				if test.admin {
					watch := claimOf("watch", adminResult("all", 1))
					watch.Status.ReservedFor[0].UID = "another"
					mustPrepare(t, b.Preparer, watch)
				}
				b.hardware.pids[gpuName(1)], b.hardware.processesErr = test.onGPU, test.err
				mustUnprepare(t, b.Preparer, claim)
				if !test.kept && b.hardware.lists > 1 {
					t.Errorf("the driver was asked %d times who uses the GPU, want once", b.hardware.lists)
				}
				b.Recover(t.Context())
				b.wantKept("unprepared", test.kept)
				if (b.Ledger.Record("a") != nil) != test.kept {
					t.Errorf("records %v, want that of claim a: %t", onDisk(t, b.dir), test.kept)
				}
			})
		})
	}
}

// podsAlone are processes of pods where those of a claim cannot be seen.
type podsAlone struct{ podProcesses }

func (*podsAlone) OfClaim(context.Context, string, string) ([]int, error) {
	return nil, processes.ErrHidden
}

// Where the process table cannot be seen, what is known of the pods on record is all there is.
func TestReconcile_ProcessTableHidden(t *testing.T) {
	b := newBed(t)
	seen := &podsAlone{podProcesses{pids: map[types.UID][]int{"pod-uid": {7}}}}
	b.processes = seen
	mustPrepare(t, b.Preparer, claimOn("a", 1))
	b.Reconcile(t.Context(), &fakeAPI{})
	wantDisk(t, b, line("a", 1))
	clear(seen.pids)
	b.Recover(t.Context())
	wantDisk(t, b)
}

// endingProcesses are there for so many looks.
type endingProcesses struct{ looks int }

func (p *endingProcesses) OfPods(context.Context, []types.UID) ([]int, error) {
	if p.looks--; p.looks < 0 {
		return nil, nil
	}
	return []int{7}, nil
}

// A pod without a claim computes on one of the GPUs of a claim that has ended: it keeps that GPU, and nothing else of the claim.
func TestUnprepare_PassedOnGPUAlone(t *testing.T) {
	for name, end := range map[string]func(b *simBed, seen *podProcesses){
		"unprepared": func(b *simBed, _ *podProcesses) { b.unprepare("a") },
		"unprepared while its pod runs": func(b *simBed, seen *podProcesses) {
			seen.pids["pod-uid"] = []int{4711}
			b.unprepare("a")
			delete(seen.pids, "pod-uid")
			b.Recover(b.t.Context())
		},
		"gone":                        func(b *simBed, _ *podProcesses) { b.Reconcile(b.t.Context(), &fakeAPI{}) },
		"unprepared, another is lost": func(b *simBed, _ *podProcesses) { b.lose(3); b.unprepare("a") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, seen := newSimBed(t, "hgx-h100"), &podProcesses{pids: map[types.UID][]int{"another": {7}}}
				b.processes, b.edits = seen, []func(*Options){func(o *Options) { o.Processes = seen }}
				b.prepare("a", b.name(0), b.name(1, 14, 4), b.name(2), b.name(3, 14, 4))
				b.run(0, 7, nil)
				end(b, seen)
				for range 2 {
					b.wantTaken("the GPU in use")
					b.unprepare("a")
					b.Recover(t.Context())
					r := b.Ledger.Record("a")
					equal(t, "GPUs that nothing but a reset of them ends", []bool{false, true, true, true},
						[]bool{r.EndsWithReset(b.name(0)), r.EndsWithReset(b.name(1)), r.EndsWithReset(b.name(2)), r.EndsWithReset(b.name(3))})
					b = b.restart()
				}
				b.prepare("b", b.name(1, 14, 4))
				b.prepare("c", b.name(2))
				must(t, b.node.Faults().Clear(-1))
				must(t, b.node.Clients().Remove(0, 7))
				b.Recover(t.Context())
				b.want(list("1 14@4"), list("b", "c"), list("b"))
				b.prepare("d", b.name(0))
			})
		})
	}
}
