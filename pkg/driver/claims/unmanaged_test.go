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

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
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
		if err := b.tryPrepare("a", device); err == nil {
			t.Errorf("%s was given though an unmanaged partition is there", device)
		}
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

// An unmanaged partition that was created since the last look is met only when ours is created.
func TestUnmanagedPartition_NotSeenYet(t *testing.T) {
	t.Run("refused", func(t *testing.T) {
		b := newSimBed(t, "hgx-h100")
		occupy(t, b.node, 0, 19, 6, 1)
		if err := b.tryPrepare("a", b.name(0, 19, 6)); !errors.Is(err, gpu.ErrInsufficientResources) {
			t.Errorf("got %v, want insufficient resources", err)
		}
		b.want(list("0 19@6"), nil, nil)
	})
	t.Run("killed meanwhile", func(t *testing.T) {
		b := newSimBed(t, "hgx-h100")
		b.prepare("a", b.name(0, 19, 6))
		b.unprepare("a")
		occupy(t, b.node, 0, 19, 6, 1)
		// The plugin dies once its intent is written: nothing can be removed any more.
		b.disk.fail = func(op, path string) error {
			if op == "Remove" && strings.Contains(path, "claims") {
				return os.ErrPermission
			}
			return nil
		}
		if err := b.tryPrepare("a", b.name(0, 19, 6)); err == nil {
			t.Error("Prepare said success")
		}
		b.disk.fail = nil
		b = b.restart()
		b.Reconcile(t.Context(), &fakeAPI{})
		b.Recover(t.Context())
		b.want(list("0 19@6"), nil, nil)
	})
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
	if err := b.tryPrepare("watch", admin(b.name(0, 9, 4))); err == nil {
		t.Fatal("Prepare said success")
	}
	b.want(list("0 9@4"), list("a"), list("a"))
}

func TestPrepare_SpecMissing(t *testing.T) {
	steps := map[string]func(b *simBed, claims map[string]string) *simBed{
		"at Prepare": func(b *simBed, claims map[string]string) *simBed {
			b.prepare("a", claims["a"])
			b.prepare("watch", claims["watch"])
			return b
		},
		"at Recover": func(b *simBed, _ map[string]string) *simBed {
			b.Recover(b.t.Context())
			return b
		},
		"at a restart": func(b *simBed, _ map[string]string) *simBed { return b.restart() },
	}
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			b := newSimBed(t, "hgx-h100")
			claims := map[string]string{"a": b.name(0, 9, 4), "watch": admin(b.name(0, 9, 4))}
			b.prepare("a", claims["a"])
			b.prepare("watch", claims["watch"])
			want := map[string]string{}
			for _, uid := range []string{"a", "watch"} {
				path := filepath.Join(b.specs.dir, uid)
				data, err := os.ReadFile(path)
				must(t, err)
				want[uid] = string(data)
				must(t, os.Remove(path))
			}
			b = step(b, claims)
			for _, uid := range []string{"a", "watch"} {
				data, _ := os.ReadFile(filepath.Join(b.specs.dir, uid))
				if diff := cmp.Diff(want[uid], string(data)); diff != "" {
					t.Errorf("spec of claim %s (-before +after):\n%s", uid, diff)
				}
			}
			b.want(list("0 9@4"), list("a", "watch"), list("a", "watch"))
		})
	}
}
