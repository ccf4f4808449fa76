// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// overlapping are the devices of the i-th GPU that share units with a placement.
func overlapping(b *simBed, i int, at gpu.Placement) []string {
	names := []string{}
	for _, s := range b.session.Node().GPUs[i].Shapes() {
		if !s.IsPartition() || s.Placement.Overlaps(at) {
			names = append(names, s.Name())
		}
	}
	return names
}

func TestUnmanagedPartition_Refused(t *testing.T) {
	b := newSimBed(t, "hgx-h100", func(node *sim.Node) { occupy(t, node, 0, 14, 2, 2) })
	b.prepare("own", b.name(0, 19, 6))
	check := func(step string) {
		t.Helper()
		if !slices.Contains(b.instances(), "0 14@2") {
			t.Fatalf("%s: the unmanaged partition is gone: %v", step, b.instances())
		}
		if diff := cmp.Diff(overlapping(b, 0, gpu.Placement{Start: 2, Size: 2}), b.Partitions.Occupied()); diff != "" {
			t.Fatalf("%s: occupied devices (-want +got):\n%s", step, diff)
		}
	}
	check("after the start")
	for _, device := range overlapping(b, 0, gpu.Placement{Start: 2, Size: 2}) {
		wantError(t, b.tryPrepare("a", device))
		b.unprepare("a")
	}
	check("after Prepare and Unprepare of what it occupies")
	b.Recover(t.Context())
	b.Reconcile(t.Context(), &fakeAPI{claims: claimList(deviceClaim("own", b.name(0, 19, 6)))})
	check("after Recover and Reconcile")
	b = b.restart()
	check("after a restart")
	b.Reconcile(t.Context(), &fakeAPI{})
	b.Recover(t.Context())
	check("after all claims are gone")
	b.want(list("0 14@2"), nil, nil)
}

func TestUnmanagedPartition_Gone(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	gi := occupy(t, b.node, 0, 19, 0, 1)
	b.Partitions.FindUnmanaged(t.Context())
	if len(b.Partitions.Occupied()) == 0 {
		t.Fatal("an unmanaged partition created while running occupies nothing")
	}
	cis, err := gi.ComputeInstances(0)
	must(t, err)
	must(t, errors.Join(cis[0].Destroy(), gi.Destroy()))
	b.Partitions.FindUnmanaged(t.Context())
	b.wantOccupied()
	b.prepare("a", b.name(0, 19, 0))
}

// An unmanaged partition that was created since the last look is met only when ours is created, and the plugin dies meanwhile.
func TestUnmanagedPartition_NotSeenYet(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.prepare("a", b.name(0, 19, 6))
	b.unprepare("a")
	occupy(t, b.node, 0, 19, 6, 1)
	b.disk.fail = failOp("Remove", os.ErrPermission) // it dies once its intent is written: nothing can be removed any more
	wantError(t, b.tryPrepare("a", b.name(0, 19, 6)))
	b.disk.fail = nil
	b = b.restart()
	b.Reconcile(t.Context(), &fakeAPI{})
	b.Recover(t.Context())
	b.want(list("0 19@6"), nil, nil)
}

func TestAdminAccess_Partition(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	device := b.name(0, 9, 4)
	wantError(t, b.tryPrepare("watch", admin(device)), device)
	b.want(nil, nil, nil)
	owner := b.prepare("a", device)
	got := b.prepare("watch", admin(device))
	equal(t, "partition", owner[0].Partition, got[0].Partition)
	b.want(list("0 9@4"), list("a", "watch"), list("a", "watch"))
	b.unprepare("watch")
	b.want(list("0 9@4"), list("a"), list("a"))
	b.prepare("watch", admin(device))
	b.unprepare("a")
	b.want(nil, list("watch"), list("watch"))
	b.prepare("b", b.name(0))
	b.unprepare("watch")
	b.want(nil, list("b"), nil)
}

func TestAdminAccess_RecordNotWritten(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.prepare("a", b.name(0, 9, 4))
	b.disk.fail = failOp("WriteFile", os.ErrPermission)
	wantError(t, b.tryPrepare("watch", admin(b.name(0, 9, 4))))
	b.want(list("0 9@4"), list("a"), list("a"))
}

func TestPrepare_SpecMissing(t *testing.T) {
	prepare := func(b *simBed) *simBed {
		b.prepare("a", b.name(0, 9, 4))
		b.prepare("watch", admin(b.name(0, 9, 4)))
		return b
	}
	for name, step := range map[string]func(b *simBed) *simBed{
		"at Prepare":   prepare,
		"at Recover":   func(b *simBed) *simBed { b.Recover(b.t.Context()); return b },
		"at a restart": func(b *simBed) *simBed { return b.restart() },
	} {
		t.Run(name, func(t *testing.T) {
			b := prepare(newSimBed(t, "hgx-h100"))
			want := map[types.UID]string{}
			for _, uid := range []types.UID{"a", "watch"} {
				data, err := os.ReadFile(b.specs.path(uid))
				must(t, errors.Join(err, b.specs.RemoveClaim(uid)))
				want[uid] = string(data)
			}
			b = step(b)
			for _, uid := range []types.UID{"a", "watch"} {
				data, err := os.ReadFile(b.specs.path(uid))
				must(t, err)
				equal(t, "spec of claim "+string(uid), want[uid], string(data))
			}
			b.want(list("0 9@4"), list("a", "watch"), list("a", "watch"))
		})
	}
}

// In mode existing, an unmanaged partition is allocated as it is, and outlives the claim.
func TestPrepare_ExistingPartition(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	gi := occupy(t, b.node, 0, 19, 6, 1)
	device := b.name(0, 19, 6)
	b.offer(0, &policy.PartitionOffer{Mode: policy.Existing, Places: []gpu.Place{place(19, 6, 1), place(20, 6, 1)}})

	// A GPU instance without a compute instance is of no use to anybody.
	compute, err := gi.ComputeInstanceByID(0)
	must(t, err)
	must(t, compute.Destroy())
	b.Partitions.FindUnmanaged(t.Context())
	if got := b.Partitions.Existing(); len(got) != 0 || !slices.Contains(b.Partitions.Occupied(), device) {
		t.Errorf("half made: got %v offered, want none and %s occupied", got, device)
	}
	if _, err := gi.CreateComputeInstance(0); err != nil {
		t.Fatal(err)
	}
	b.Partitions.FindUnmanaged(t.Context())
	offered := b.Partitions.Existing()
	if len(offered) != 1 || offered[0].Device != device || offered[0].UUID == "" {
		t.Fatalf("got %v offered, want %s with its UUID", offered, device)
	}
	b.wantOccupied(b.name(0), b.name(0, 20, 6))

	got := b.prepare("a", device)
	equal(t, "UUID", offered[0].UUID, got[0].Partition.UUID)
	if b.tryPrepare("b", device) == nil {
		t.Error("a second claim got the same partition")
	}
	b.Recover(t.Context())
	b.want(list("0 19@6"), list("a"), list("a"))
	b.unprepare("a")
	b.want(list("0 19@6"), nil, nil)
	b.prepare("b", device)
	b.unprepare("b")
	b.want(list("0 19@6"), nil, nil)
}

// Claims that wait for a plugin to start are prepared before it has looked for partitions.
func TestPrepare_BeforeFirstLook(t *testing.T) {
	for name, offer := range map[string]*policy.PartitionOffer{
		"layout":   cutInto(place(19, 6, 1)),
		"existing": {Mode: policy.Existing, Places: []gpu.Place{place(19, 6, 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newSimBed(t, "hgx-h100")
			b.lay(cutInto(place(19, 6, 1)))
			b.lay(offer)
			b.dying(1000, func(e *Preparer, _ *nvml.Session) { // lives long enough
				got := mustPrepare(t, e, deviceClaim("a", b.name(0, 19, 6)))
				if len(got) != 1 || !got[0].Partition.Existing {
					t.Errorf("got %v, want the partition that exists", got)
				}
			})
			b.want(list("0 19@6"), list("a"), list("a"))
		})
	}
}
