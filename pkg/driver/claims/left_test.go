// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/processes"
)

// OfClaim is by "namespace/name" of the claim.
func (p *podProcesses) OfClaim(_ context.Context, namespace, name string) ([]int, error) {
	return p.pids[types.UID(namespace+"/"+name)], p.err
}

// InPods are those of pods or claims.
func (p *podProcesses) InPods(pids []int) (found []processes.Process) {
	for pod, in := range p.pids {
		for _, pid := range in {
			if slices.Contains(pids, pid) {
				found = append(found, processes.Process{PID: pid, Name: "python", Pod: pod})
			}
		}
	}
	return found
}

func (p *endingProcesses) InPods([]int) []processes.Process { return nil }

func (p *endingProcesses) OfClaim(context.Context, string, string) ([]int, error) { return nil, nil }

// newLeftBed is a node where claim a of the second GPU was unprepared while a process of its pod was left.
func newLeftBed(t *testing.T) (*bed, *podProcesses) {
	t.Helper()
	b, seen := newBed(t), &podProcesses{pids: map[types.UID][]int{"pod-uid": {4711}}}
	b.processes, b.api = seen, &fakeAPI{claims: claimList(claimOn("a", 1))}
	mustPrepare(t, b.Preparer, claimOn("a", 1))
	mustUnprepare(t, b.Preparer, claimOn("a", 1))
	return b, seen
}

// wantKept fails unless the second GPU is tainted and refused to the next claim, or neither.
func (b *bed) wantKept(step string, kept bool) {
	b.t.Helper()
	if got := slices.Contains(b.Partitions.Occupied(), gpuName(1)); got != kept {
		b.t.Errorf("%s: the GPU is occupied: %t, want %t", step, got, kept)
	}
	_, err := b.Named(testDriver).prepare(b.t.Context(), claimOn("next", 1), terms{})
	if kept != errors.Is(err, ErrAllocated) || !kept && err != nil {
		b.t.Errorf("%s: Prepare of the next claim: %v, want a refusal: %t", step, err, kept)
	}
}

// A process that hangs keeps its GPU from the next claim, whatever ends: the pod, its reservation, the plugin. A reboot ends it.
func TestUnprepare_ProcessLeft(t *testing.T) {
	for _, boot := range []string{bootNow, "boot-next"} {
		synctest.Test(t, func(t *testing.T) {
			b, seen := newLeftBed(t)
			b.wantKept("after Unprepare", true)
			b.api = &fakeAPI{}
			mustUnprepare(t, b.Preparer, claimOn("a", 1))
			b.wantKept("unprepared again, reserved for nobody", true)
			var reported error
			b.onRelease = func(_ records.Claim, err error) { reported = err }
			b.Recover(t.Context())
			b.wantKept("after Recover", true)
			if !errors.Is(reported, gpu.ErrInUse) || !b.Unfinished() {
				t.Errorf("reported %v, want that processes are left", reported)
			}
			b.Reconcile(t.Context(), b.api)
			b = openBed(t, b.dir, inBoot(boot)) // the plugin was killed
			b.load()
			b.SetHardware(b.hardware, b.specs)
			b.processes = seen
			if boot == bootNow {
				b.Recover(t.Context())
				b.wantKept("after kill -9", true)
				delete(seen.pids, "pod-uid")
				b.Recover(t.Context())
			}
			b.wantKept("once it has ended", false)
		})
	}
}

// The same where the processes cannot be found out; where they cannot be seen by design, the kubelet is believed.
func TestUnprepare_ProcessesUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.processes, b.api = &podProcesses{err: errors.New("no such luck")}, &fakeAPI{claims: claimList(claimOn("a", 1))}
		mustPrepare(t, b.Preparer, claimOn("a", 1))
		mustUnprepare(t, b.Preparer, claimOn("a", 1))
		wantDisk(t, b, line("a", 1))
		b.processes = &podProcesses{err: processes.ErrHidden}
		b.Recover(t.Context())
		wantDisk(t, b)
	})
}

// Who reserved the claim does not matter: of what is no pod, the containers that were given the claim are looked for.
func TestUnprepare_OtherConsumers(t *testing.T) {
	group := resourceapi.ResourceClaimConsumerReference{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g", UID: "g-uid"}
	pod := resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "pod", UID: "pod-uid"}
	second := resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "second", UID: "second-uid"}
	for name, test := range map[string]struct {
		first, later []resourceapi.ResourceClaimConsumerReference
		pids         map[types.UID][]int
		onGPU        []int
		generated    bool
		away, kept   bool
	}{
		"container runs":                {first: consumers(group), pids: map[types.UID][]int{"ns/claim-a": {7}}, kept: true},
		"container runs, reserved late": {first: consumers(pod), later: consumers(group), pids: map[types.UID][]int{"ns/claim-a": {7}}, kept: true},
		"pod runs, group alongside":     {first: consumers(group, pod), pids: map[types.UID][]int{"pod-uid": {7}}, kept: true},
		"driver lists a process":        {first: consumers(group), onGPU: []int{7}, kept: true},
		"driver is away":                {first: consumers(group), away: true, kept: true},
		"ended":                         {first: consumers(group), pids: map[types.UID][]int{"ns/another": {7}}},
		"of pods alone":                 {first: consumers(pod), onGPU: []int{7}},
		"another pod's container runs":  {first: consumers(pod), pids: map[types.UID][]int{"ns/claim-a": {7}}, kept: true},
		"generated for the pod":         {first: consumers(pod), generated: true, pids: map[types.UID][]int{"ns/claim-a": {7}}},
		"generated, and named by another pod": {first: consumers(pod), later: consumers(second), generated: true,
			pids: map[types.UID][]int{"ns/claim-a": {7}}, kept: true},
	} {
		for _, reserved := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", reserved ", reserved), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBed(t)
					claim := claimOn("a", 1)
					claim.Status.ReservedFor = test.first
					if test.generated {
						owner := &metav1.ObjectMeta{Name: pod.Name, UID: pod.UID}
						claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, schema.GroupVersionKind{Version: "v1", Kind: "Pod"})}
					}
					mustPrepare(t, b.Preparer, claim)
					claim.Status.ReservedFor = slices.Concat(test.first, test.later)
					b.Reconcile(t.Context(), &fakeAPI{claims: claimList(claim)})
					b.processes, b.hardware.pids[gpuName(1)] = &podProcesses{pids: test.pids}, test.onGPU
					if b.api = (&fakeAPI{}); reserved {
						b.api = &fakeAPI{claims: claimList(claim)}
					}
					if test.away {
						b.SetWaiting(gpu.ErrDriverNotLoaded)
					}
					if err := b.Unprepare(t.Context(), refOf(claim)); err != nil {
						t.Errorf("Unprepare: %v", err)
					}
					if b.SetHardware(b.hardware, b.specs); test.kept {
						wantDisk(t, b, line("a", 1))
					} else {
						wantDisk(t, b)
					}
				})
			})
		}
	}
}

func consumers(all ...resourceapi.ResourceClaimConsumerReference) []resourceapi.ResourceClaimConsumerReference {
	return all
}

// A second pod shares a claim and is deleted by force before the next reconcile: nobody knows of it but its container, which runs.
func TestUnprepare_SecondPodBetweenReconciles(t *testing.T) {
	for _, asked := range []bool{false, true} { // as by a kubelet that was restarted
		synctest.Test(t, func(t *testing.T) {
			b, claim := newBed(t), claimOn("a", 1)
			seen := &podProcesses{pids: map[types.UID][]int{"pod-2": {4711}, "ns/claim-a": {4711}}}
			b.processes, b.api = seen, &fakeAPI{}
			mustPrepare(t, b.Preparer, claim)
			second := claim.DeepCopy()
			second.Status.ReservedFor = append(second.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", UID: "pod-2"})
			want := []types.UID{"pod-uid"}
			if asked {
				mustPrepare(t, b.Preparer, second)
				want = append(want, "pod-2")
			}
			equal(t, "pods", want, b.Ledger.Record("a").Pods)
			mustUnprepare(t, b.Preparer, second)
			b.wantKept("while the second pod's container runs", true)
			clear(seen.pids)
			b.Recover(t.Context())
			b.wantKept("once it has ended", false)
		})
	}
}

// A claim's name is that of a later one by the time its process ends: the later one's container does not keep what it had.
func TestRecover_ClaimOfTheSameName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, seen := newLeftBed(t)
		later := claimOn("later", 2)
		later.Name, later.Status.ReservedFor[0].UID = "claim-a", "later-pod"
		mustPrepare(t, b.Preparer, later)
		seen.pids = map[types.UID][]int{"later-pod": {7, 8}, "ns/claim-a": {7, 9}}
		b.Recover(t.Context())
		b.wantKept("while a container of neither pod runs", true)
		seen.pids["ns/claim-a"] = []int{7}
		b.Recover(t.Context())
		b.wantKept("while the later claim's runs", false)
	})
}

// A claim is allocated the same GPU anew, by another request and for another pod, while a process of the first one hangs.
func TestPrepare_ProcessLeftOfEarlierAllocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, seen := newBed(t), &podProcesses{pids: map[types.UID][]int{"pod-uid": {4711}}}
		b.processes = seen
		mustPrepare(t, b.Preparer, claimOf("a", result("gpu/x", 1)))
		anew := claimOf("a", result("gpu/y", 1))
		anew.Status.ReservedFor[0].UID = "pod-2"
		_, err := b.Named(testDriver).prepare(t.Context(), anew, terms{})
		wantError(t, err, "4711")
		mustUnprepare(t, b.Preparer, anew)
		b.wantKept("while its first pod runs", true)
		clear(seen.pids)
		b.Recover(t.Context())
		mustPrepare(t, b.Preparer, anew)
	})
}

// A partition of a claim vanishes, and is created again while its pod runs: that stays on record, also where that is cut short.
func TestRecover_CutShortWhilePodRuns(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.processes = &podProcesses{pids: map[types.UID][]int{"pod-uid": {4711}}}
	b.prepare("a", b.name(0), b.name(1, 19, 6))
	again := deviceClaim("a", b.name(0), b.name(1, 19, 6))
	again.Status.ReservedFor[0].UID = "pod-2"
	must(t, b.session.DestroyPartition(t.Context(), b.session.Node().GPUs[1].PCI, *b.Ledger.Record("a").Devices[1].Partition))
	mustPrepare(t, b.Preparer, again)
	equal(t, "pods", []types.UID{"pod-uid", "pod-2"}, b.Ledger.Record("a").Pods)
	short := b.Ledger.Record("a").Clone()
	short.State = records.Preparing
	must(t, b.Ledger.write(short))
	b.Recover(t.Context())
	wantRefused(t, b.Preparer, deviceClaim("next", b.name(0)), "claim ns/claim-a")
	b.processes = &podProcesses{}
	b.Recover(t.Context())
	b.prepare("next", b.name(0))
}

// A claim that comes back is not prepared while its earlier pods have processes, neither there nor elsewhere.
func TestPrepare_ProcessLeftOfClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, seen := newLeftBed(t)
		for _, i := range []int{1, 2} {
			_, err := b.Named(testDriver).prepare(t.Context(), claimOn("a", i), terms{})
			wantError(t, err, "4711")
		}
		b.wantKept("after that", true)
		delete(seen.pids, "pod-uid")
		mustPrepare(t, b.Preparer, claimOn("a", 2))
		b.wantKept("once it has ended", false)
	})
}

// A pod whose processes have ended does not wait for those of others in its partition.
func TestUnprepare_PartitionInUseByOthers(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.processes = &podProcesses{}
	b.hold(b.prepare("a", b.name(0, 9, 4))[0], 4711)
	b.unprepare("a")
	if got := b.recordState("a"); got != records.Releasing || !slices.Contains(b.Partitions.Occupied(), b.name(0, 9, 4)) {
		t.Errorf("the record is %q, want %q, and the device occupied", got, records.Releasing)
	}
	must(t, b.node.Clients().Remove(0, 4711))
	b.Recover(t.Context())
	b.want(nil, nil, nil)
}

// An MPS server ends at once, and its clients with it, though they may hang.
func TestUnprepare_ProcessLeftOfMPS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		claim := b.claim("a", mpsOf(0, 10, 8))
		seen := &podProcesses{pids: map[types.UID][]int{"pod-uid": {7}}}
		b.processes, b.api = seen, &fakeAPI{claims: claimList(claim)}
		mustPrepare(t, b.Preparer, claim)
		mustUnprepare(t, b.Preparer, claim)
		if got := b.sharing.files(); len(got) != 0 || !b.Unfinished() {
			t.Errorf("served: %v, unfinished: %t", got, b.Unfinished())
		}
		delete(seen.pids, "pod-uid")
		b.Recover(t.Context())
		if b.Unfinished() {
			t.Error("the claim is not released")
		}
	})
}

// Who waits looks less and less often.
func TestUnprepare_LooksRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		seen := &endingProcesses{looks: 1000}
		b.processes, b.api = seen, &fakeAPI{}
		mustPrepare(t, b.Preparer, claimOn("a", 1))
		mustUnprepare(t, b.Preparer, claimOn("a", 1))
		if looks := 1000 - seen.looks; looks > 20 {
			t.Errorf("%d looks in ten seconds, want fewer than 20", looks)
		}
	})
}

// A process that hangs keeps its share from the next claim, which the scheduler has given it as the claim is gone.
func TestPrepare_ProcessLeftOfShare(t *testing.T) {
	for kind, share := range map[gpu.Share]part{gpu.TimeSlice: sliceOf(0, 50), gpu.MPS: mpsOf(0, 60, 50)} {
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			b.processes = &podProcesses{pids: map[types.UID][]int{"pod-of-a": {4711}}}
			b.api = &fakeAPI{claims: claimList(b.claim("next", share))}
			claim := b.claim("a", share)
			claim.Status.ReservedFor[0].UID = "pod-of-a"
			mustPrepare(t, b.Preparer, claim)
			b.Reconcile(t.Context(), b.api) // the claim is gone
			took, err := prepareIn(t, b.Preparer, b.claim("next", share))
			if wantError(t, err, "the claim is prepared once other shares are released"); took != releaseTimeout {
				t.Errorf("%s: waited %s", kind, took)
			}
			b.processes = &podProcesses{} // it has ended
			if took, err := prepareIn(t, b.Preparer, b.claim("next", share)); err != nil || took > releaseRetry {
				t.Errorf("%s: once the process has ended, Prepare = %v after %s", kind, err, took)
			}
		})
	}
}
