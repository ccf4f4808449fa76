// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// sharedPartitions is a rule that shares them in both ways.
func sharedPartitions() v1alpha1.Rule {
	return v1alpha1.Rule{MIG: &v1alpha1.MIGPolicy{Share: []v1alpha1.PartitionShare{
		{Profile: "3g.40gb", MPS: &v1alpha1.MPSPolicy{}, TimeSlice: &v1alpha1.TimeSlicePolicy{}},
	}}}
}

// newPartBed is a plugin on a simulated node whose partitions 3g.40gb are shared.
func newPartBed(t *testing.T) *simBed {
	t.Helper()
	b := newSimBed(t, "hgx-h100")
	b.use(sharedPartitions())
	return b
}

// server is the name of the partition's MPS server, mps and slice those of the devices that share it: the upper half of the
// first GPU.
func (b *simBed) server() string { return b.name(0, 9, 4) }
func (b *simBed) mps() string    { return b.server() + "-mps" }
func (b *simBed) slice() string  { return b.server() + "-timeslice" }

func (b *simBed) wantServed(uids ...types.UID) {
	b.t.Helper()
	equal(b.t, "claims that the partition's MPS server serves", uids, b.sharing.served(b.server()))
}

func TestPartitionShare_FirstAndLast(t *testing.T) {
	b := newPartBed(t)
	b.prepare("before", b.name(0, 5, 0)) // 4g.40gb for one claim, alongside
	first := b.prepare("a", b.mps())[0]
	second := b.prepare("b", b.mps())[0]
	if first.Partition.UUID == "" || !cmp.Equal(first.Partition, second.Partition) {
		t.Errorf("the claims have partitions %+v and %+v, want one", first.Partition, second.Partition)
	}
	if want := "/run/mps/" + b.server() + "/pipe"; first.Share.MPS.PipeDir != want || second.Share.MPS.PipeDir != want {
		t.Errorf("pipes are in %s and %s, want %s", first.Share.MPS.PipeDir, second.Share.MPS.PipeDir, want)
	}
	b.want(list("0 5@0", "0 9@4"), list("a", "b", "before"), list("a", "b", "before"))
	b.wantServed("a", "b")
	b.unprepare("a")
	b.want(list("0 5@0", "0 9@4"), list("b", "before"), list("b", "before"))
	b.wantServed("b")
	b.prepare("a", b.mps()) // another pod
	b = b.restart()
	b.want(list("0 5@0", "0 9@4"), list("a", "b", "before"), list("a", "b", "before"))
	b.unprepare("b")
	b.sharing.took()
	b.sharing.step = func(what string) { // the server ends before its partition goes
		if !slices.Contains(b.instances(), "0 9@4") {
			t.Errorf("%s: the partition is gone already", what)
		}
	}
	b.unprepare("a")
	b.want(list("0 5@0"), list("before"), list("before"))
	b.wantServed()
	equal(t, "calls after the last claim", list("StopMPS "+b.server()+" a", "RetainMPS "+b.server()), b.sharing.took())
}

func TestPartitionShare_InTime(t *testing.T) {
	b := newPartBed(t)
	b.prepare("a", b.slice())
	b.prepare("b", b.slice())
	b.want(list("0 9@4"), list("a", "b"), list("a", "b"))
	b.unprepare("a")
	b.unprepare("b")
	b.want(nil, nil, nil)
	if calls := b.sharing.took(); len(calls) > 0 {
		t.Errorf("got calls %v, want none: nothing but a partition is needed", calls)
	}
}

// Each server has a partition of its own.
func TestPartitionShare_TwoOfOneGPU(t *testing.T) {
	b := newPartBed(t)
	lower := b.name(0, 9, 0)
	b.prepare("a", b.mps())
	b.prepare("b", lower+"-mps")
	b.wantServed("a")
	if got := b.sharing.served(lower); !cmp.Equal(got, []types.UID{"b"}) {
		t.Errorf("the other server serves %v, want b", got)
	}
	b.unprepare("a")
	b.want(list("0 9@0"), list("b"), list("b"))
}

func TestPartitionShare_Exclusion(t *testing.T) {
	b := newPartBed(t)
	forms := map[string]string{
		"MPS": b.mps(), "time slices": b.slice(), "for one claim": b.server(), "a part of it": b.name(0, 19, 5), "the whole GPU": b.name(0),
		"the GPU, shared in time": b.name(0) + "-timeslice", "the GPU, shared by MPS": b.name(0) + "-mps", "all of it as a partition": b.name(0, 0, 0),
	}
	for first, had := range forms {
		for second, wanted := range forms {
			t.Run(first+" before "+second, func(t *testing.T) {
				b := newPartBed(t)
				b.prepare("a", had)
				before := b.instances()
				err := b.tryPrepare("b", wanted)
				if had == wanted && (strings.HasSuffix(had, "-mps") || strings.HasSuffix(had, "-timeslice")) {
					if err != nil {
						t.Errorf("a second share: %v", err)
					}
					return
				}
				wantError(t, err, "ns/claim-a (a)")
				b.want(before, list("a"), b.files("specs/"+testDriver))
				b.unprepare("a")
				b.prepare("b", wanted)
				if isMIG := len(b.modes()) > 0; isMIG != strings.Contains(wanted, "-mig-") {
					t.Errorf("MIG mode %t with %s", isMIG, wanted)
				}
			})
		}
	}
}

// What a killed plugin registered without a record does not keep the partition.
func TestPartitionShare_ServedWithoutRecord(t *testing.T) {
	b := newPartBed(t)
	b.prepare("a", b.mps())
	must(t, os.WriteFile(filepath.Join(b.sharing.dir, "mps "+b.server()+" lost"), []byte(testDriver), 0o600))
	b.unprepare("a")
	b.want(nil, nil, nil)
	b.wantServed()
}

// No pod waits for the supervisor, and nobody gets a partition of which the server may still run.
func TestPartitionShare_SupervisorAway(t *testing.T) {
	b := newPartBed(t)
	b.prepare("a", b.mps())
	b.sharing.err = func(string) error { return errDown }
	b.unprepare("a")
	b.want(list("0 9@4"), list("a"), nil)
	for _, device := range []string{b.mps(), b.slice(), b.server()} {
		if !slices.Contains(b.Partitions.Occupied(), device) {
			t.Errorf("device %s is not reported as occupied", device)
		}
		wantError(t, b.tryPrepare("b", device), "ns/claim-a (a)")
	}
	b.sharing.err = nil
	b.Recover(t.Context())
	b.want(nil, nil, nil)
	b.prepare("b", b.mps())
}

func TestPartitionShare_StartFails(t *testing.T) {
	b := newPartBed(t)
	failsAt := func(step string, claim types.UID) {
		b.sharing.err = failing(step, errDown)
		if err := b.tryPrepare(claim, b.mps()); !errors.Is(err, errDown) {
			t.Fatalf("got %v, want %v", err, errDown)
		}
	}
	failsAt("after StartMPS", "a")
	b.want(nil, nil, nil)
	b.wantServed()
	b.sharing.err = nil
	b.prepare("a", b.mps())
	failsAt("before StartMPS", "b")
	b.want(list("0 9@4"), list("a"), list("a")) // what others share stays
	b.wantServed("a")
}

func TestPartitionShare_TwoOfOneClaim(t *testing.T) {
	b := newPartBed(t)
	devices := b.prepare("a", b.mps(), b.mps())
	if devices[0].Partition.UUID != devices[1].Partition.UUID {
		t.Errorf("the shares are of %s and %s, want one partition", devices[0].Partition.UUID, devices[1].Partition.UUID)
	}
	b.prepare("a", b.mps(), b.mps()) // the kubelet asks again
	b.unprepare("a")
	b.want(nil, nil, nil)
}

// A layout's partition is there before its first claim and after its last one.
func TestPartitionShare_Layout(t *testing.T) {
	b := newPartBed(t)
	rule := sharedPartitions()
	rule.MIG.Layout = map[string]int32{"3g.40gb": 2}
	keep := func() {
		t.Helper()
		b.use(rule)
		b.kept()
	}
	keep()
	there := b.instances()
	before := b.Partitions.Existing()
	if !slices.ContainsFunc(before, func(e Existing) bool { return e.Device == b.mps() && e.UUID != "" }) {
		t.Errorf("existing are %v, want %s among them", before, b.mps())
	}
	b.prepare("a", b.mps())
	b.prepare("b", b.mps())
	wantError(t, b.tryPrepare("c", b.server()), "ns/claim-a (a)")
	keep()
	b.want(there, list("a", "b"), list("a", "b"))
	b.unprepare("a")
	b.unprepare("b")
	b.want(there, nil, nil)
	b.prepare("c", b.server())
	b.unprepare("c")
	b.want(there, nil, nil)
}

// A layout that no longer has the partition waits for its last claim.
func TestPartitionShare_LayoutChanges(t *testing.T) {
	b := newPartBed(t)
	b.prepare("a", b.mps())
	b.prepare("b", b.mps())
	b.use(v1alpha1.Rule{MIG: &v1alpha1.MIGPolicy{Layout: map[string]int32{"1g.10gb": 7}}})
	keep := func() []string {
		b.keep()
		mine := slices.DeleteFunc(b.instances(), func(line string) bool { return !strings.HasPrefix(line, "0 ") })
		slices.Sort(mine)
		return mine
	}
	equal(t, "partitions while claims share one", list("0 19@0", "0 19@1", "0 19@2", "0 19@3", "0 9@4"), keep())
	if shape, ok := b.backend.Load().hardware.Node().FindShape(b.mps()); !ok || !b.offers[0].IsWithdrawn(shape) {
		t.Errorf("the shared device is offered: %t, want it withdrawn", ok)
	}
	b.prepare("a", b.mps()) // the kubelet asks again
	b.unprepare("a")
	b.unprepare("b")
	if got := keep(); len(got) != 7 {
		t.Errorf("partitions afterwards: %v, want seven", got)
	}
}

// A claim whose record is corrupt may be in the partition that others share.
func TestPartitionShare_CorruptRecord(t *testing.T) {
	b := newPartBed(t)
	b.prepare("a", b.mps())
	b.prepare("b", b.mps())
	spoil(t, b.dir, "b")
	b = b.restart()
	b.unprepare("a") // its pod does not wait
	if got := b.instances(); !slices.Contains(got, "0 9@4") {
		t.Errorf("partitions %v, want the shared one", got)
	}
	claim := deviceClaim("b", b.mps())
	b.Reconcile(t.Context(), &fakeAPI{claims: claimList(claim)})
	b.Recover(t.Context())
	b.want(list("0 9@4"), list("b"), list("b"))
	b.wantServed("b")
	b.unprepare("b")
	b.want(nil, nil, nil)
}

// A corrupt record keeps what its claim was allocated, and nothing else: neither shared partitions of other GPUs nor their MIG mode.
func TestPartitionShare_CorruptRecordElsewhere(t *testing.T) {
	for name, known := range map[string]bool{"listed": true, "not listed": false} {
		t.Run(name, func(t *testing.T) {
			b := newPartBed(t)
			b.prepare("a", b.mps())
			b.prepare("b", b.name(1, 19, 0))
			spoil(t, b.dir, "b")
			b = b.restart()
			if known {
				api := &fakeAPI{claims: []*resourceapi.ResourceClaim{deviceClaim("b", b.name(1, 19, 0))}}
				must(t, NewFollower(b.Ledger, api, func() *gpu.Node { return b.session.Node() }).List(t.Context()))
			}
			b.unprepare("a")
			if got := slices.Contains(b.instances(), "0 9@4"); got == known {
				t.Errorf("the shared partition of another GPU is there: %t", got)
			}
			for i, may := range []bool{!known, true, !known} { // modes are changed where none may have the GPU
				if got := b.Ledger.corruptOn(b.name(i)); (len(got) > 0) != may {
					t.Errorf("claims that may have GPU %d: %v, want any: %t", i, got, may)
				}
			}
		})
	}
}

// What a claim has whose record is corrupt is found once more when it is unprepared, and given back.
func TestUnprepare_CorruptRecordOfPartition(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.prepare("a", b.name(0, 9, 4))
	spoil(t, b.dir, "a")
	b = b.restart()
	b.api = &fakeAPI{err: errors.New("away")}
	wantError(t, b.Unprepare(t.Context(), refOf(claimOf("a"))), "away")
	b.want(list("0 9@4"), nil, list("a"))
	b.api = &fakeAPI{claims: claimList(deviceClaim("a", b.name(0, 9, 4)))}
	b.unprepare("a")
	b.want(nil, nil, nil)
}

// The partition is destroyed outside of Cleave, under claims that share it.
func TestPartitionShare_Gone(t *testing.T) {
	b := newPartBed(t)
	part := b.prepare("a", b.mps())[0].Partition
	pci := b.session.Node().GPUs[0].PCI
	must(t, b.session.DestroyPartition(t.Context(), pci, *part))
	wantError(t, b.tryPrepare("b", b.mps()), "is gone although claims share it")
	b.prepare("a", b.mps()) // its pod starts again
	b.prepare("b", b.mps())
	b.unprepare("a")
	b.unprepare("b")
	b.want(nil, nil, nil)
}
