// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// offer sets what partitions a GPU offers, in addition to the whole GPU.
func (b *simBed) offer(i int, partitions *policy.PartitionOffer) {
	b.offers[i] = policy.Offer{Whole: partitions == nil || partitions.Mode == policy.Existing, Partitions: partitions}
}

func cutInto(places ...gpu.Place) *policy.PartitionOffer {
	return &policy.PartitionOffer{Mode: policy.Layout, Places: places}
}

func place(profile, start, size int) gpu.Place {
	return gpu.Place{ProfileID: profile, Placement: gpu.Placement{Start: start, Size: size}}
}

// balanced is 1g at 6, 2g at 4 and 3g at 0.
var balanced = cutInto(place(19, 6, 1), place(14, 4, 2), place(9, 0, 4))

// keep keeps layouts and returns what is wrong, in words.
func (p *plugin) keep() string {
	p.t.Helper()
	var words []string
	for _, problem := range p.Partitions.KeepLayouts(p.t.Context(), p.backend.Load().hardware.Node()) {
		words = append(words, problem.GPU+": "+problem.Err.Error())
	}
	return strings.Join(words, "; ")
}

// kept keeps layouts without trouble.
func (p *plugin) kept() {
	p.t.Helper()
	if got := p.keep(); got != "" {
		p.t.Fatal(got)
	}
}

// lay has the first GPU offer partitions, and keeps layouts.
func (b *simBed) lay(partitions *policy.PartitionOffer) {
	b.t.Helper()
	b.offer(0, partitions)
	b.kept()
}

// layoutFiles are the places that are on record, by file.
func (p *plugin) layoutFiles() []string {
	p.t.Helper()
	var all []string
	for _, name := range p.files("layouts") {
		data, err := os.ReadFile(filepath.Join(p.dir, "layouts", name+".json"))
		if err != nil {
			if strings.HasPrefix(name, ".") {
				continue
			}
			p.t.Fatal(err)
		}
		l, err := records.DecodeLayout(data)
		must(p.t, err)
		for _, at := range l.Places {
			all = append(all, fmt.Sprintf("%s %d@%d", name, at.ProfileID, at.Placement.Start))
		}
	}
	return all
}

func TestLayout_CreatedAndKept(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.offer(0, balanced)
	all := list("0 19@6", "0 14@4", "0 9@0")
	if got := b.Partitions.Occupied(); len(got) != 3 {
		t.Errorf("got occupied devices %v before the GPU is partitioned, want the three of the layout", got)
	}
	b.kept()
	b.want(all, nil, nil)
	b.wantOccupied()
	existing := b.Partitions.Existing()
	if len(existing) != 3 || existing[0].UUID == "" {
		t.Errorf("got %v, want the three partitions with their UUIDs", existing)
	}
	device := b.name(0, 14, 4)
	got := b.prepare("a", device)
	if !got[0].Partition.Existing || got[0].Partition.UUID == "" {
		t.Errorf("got partition %+v, want the one that is there", got[0].Partition)
	}
	if b.tryPrepare("b", device) == nil {
		t.Error("a second claim got the same partition")
	}
	b.kept()
	b.want(all, list("a"), list("a"))
	b = b.restart()
	b.lay(balanced)
	b.want(all, list("a"), list("a"))
	b.unprepare("a")
	b.want(all, nil, nil)
	b.kept()
	b.want(all, nil, nil)
}

// What is free changes at once, what is allocated when it is given back.
func TestLayout_WaitsForAllocations(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.lay(balanced)
	b.prepare("a", b.name(0, 14, 4))
	next := cutInto(place(5, 0, 4), place(19, 4, 1), place(19, 5, 1), place(19, 6, 1))
	next.Kept = []gpu.Place{place(14, 4, 2)}
	b.lay(next)
	b.prepare("a", b.name(0, 14, 4)) // the kubelet asks again
	b.want(list("0 14@4", "0 19@6", "0 5@0"), list("a"), list("a"))
	if got := b.Partitions.Occupied(); !slices.Contains(got, b.name(0, 19, 4)) || slices.Contains(got, b.name(0, 5, 0)) {
		t.Errorf("got occupied devices %v, want those that wait, and not what is ready", got)
	}
	b.unprepare("a")
	b.lay(cutInto(next.Places...))
	b.want(list("0 19@4", "0 19@5", "0 19@6", "0 5@0"), nil, nil)
	// Without a layout all that Cleave made goes, and its record.
	b.offer(0, &policy.PartitionOffer{Mode: policy.OnDemand})
	wantError(t, b.tryPrepare("b", b.name(0, 19, 6)), "of the node's layout")
	b.kept()
	b.prepare("b", b.name(0, 19, 6))
	b.kept()
	b.want(list("0 19@6"), list("b"), list("b"))
	b.unprepare("b")
	b.want(nil, nil, nil)
	if got := b.layoutFiles(); len(got) != 0 {
		t.Errorf("got layouts on record %v, want none", got)
	}
	b.offer(0, nil)
	b.prepare("c", b.name(0)) // and the GPU can be had whole
}

// A claim was allocated all media engines before the layout, whose partitions have some of them, came: they are left for it.
func TestLayout_EnginesAllocated(t *testing.T) {
	b := newSimBed(t, "rtx-pro-6000")
	claim := deviceClaim("a", b.name(0, 65, 9))
	api := &fakeAPI{claims: []*resourceapi.ResourceClaim{claim}}
	follower := NewFollower(b.Ledger, api, func() *gpu.Node { return b.session.Node() })
	must(t, follower.List(t.Context()))
	layout := cutInto(place(14, 0, 3), place(67, 3, 3))
	layout.Kept = []gpu.Place{place(65, 9, 3)}
	b.lay(layout)
	b.want(list("0 67@3"), nil, nil)
	mustPrepare(t, b.Preparer, claim)
	b.unprepare("a")
	api.claims = nil
	must(t, follower.List(t.Context()))
	b.kept()
	b.want(list("0 14@0", "0 67@3"), nil, nil)
}

func TestLayout_UnmanagedPartition(t *testing.T) {
	b := newSimBed(t, "hgx-h100", func(node *sim.Node) { occupy(t, node, 0, 19, 6, 1) })
	b.lay(balanced)
	b.want(list("0 14@4", "0 19@6", "0 9@0"), nil, nil)
	b.prepare("a", b.name(0, 19, 6))
	b.unprepare("a")
	b.lay(nil)
	b.want(list("0 19@6"), nil, nil)
	// In its way, it is named.
	b.offer(0, cutInto(place(9, 4, 4), place(9, 0, 4)))
	if got := b.keep(); !strings.Contains(got, "that Cleave did not create (GPU instance") || !strings.Contains(got, b.name(0, 9, 4)) {
		t.Errorf("got %q, want what is in the way of what", got)
	}
	b.want(list("0 19@6", "0 9@0"), nil, nil)
	if got := b.Partitions.Occupied(); !slices.Equal(got, list(b.name(0, 9, 4))) {
		t.Errorf("got occupied devices %v, want the one that cannot be made", got)
	}
}

// An unmanaged partition can have the engines of a layout, wherever it is.
func TestLayout_UnmanagedEngines(t *testing.T) {
	b := newSimBed(t, "rtx-pro-6000", func(node *sim.Node) { occupy(t, node, 0, 65, 9, 3) })
	b.offer(0, cutInto(place(14, 0, 3), place(67, 3, 3)))
	want := b.name(0, 14, 0) + " of the layout cannot be created: a partition that Cleave did not create (GPU instance"
	got := b.keep()
	if !strings.Contains(got, want) || !strings.HasSuffix(got, "has engines that it needs") || strings.Contains(got, b.name(0, 67, 3)) {
		t.Errorf("got %q, want that one profile lacks engines", got)
	}
	b.want(list("0 65@9", "0 67@3"), nil, nil)
}

// Mode existing takes a layout over as it is: nothing of it is touched any more.
func TestLayout_ModeExisting(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.lay(balanced)
	b.lay(&policy.PartitionOffer{Mode: policy.Existing, Places: b.Partitions.Unclaimed(&b.session.Node().GPUs[0])})
	if got := b.layoutFiles(); len(got) != 0 {
		t.Errorf("got layouts on record %v, want none", got)
	}
	b.prepare("a", b.name(0, 9, 0))
	b.unprepare("a")
	b.lay(nil)
	b.want(list("0 14@4", "0 19@6", "0 9@0"), nil, nil)
}

func TestPrepare_ModeExisting(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.lay(&policy.PartitionOffer{Mode: policy.Existing, Places: []gpu.Place{place(19, 6, 1)}})
	err := b.tryPrepare("a", b.name(0, 19, 6))
	wantError(t, err, "by policy Cleave creates no partitions")
	b.want(nil, nil, nil)
}

// A GPU in use keeps its mode; the layout is made once it is free.
func TestLayout_GPUInUse(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.prepare("a", b.name(0))
	b.lay(balanced)
	b.want(nil, list("a"), nil)
	b.unprepare("a")
	b.kept()
	b.want(list("0 14@4", "0 19@6", "0 9@0"), nil, nil)
}

func TestLayout_AmpereOutOfMIG(t *testing.T) {
	b := newSimBed(t, "dgx-a100")
	b.offer(0, balanced)
	want := "only a reset changes: " + gpu.SwitchMIG(&b.session.Node().GPUs[0], b.session.Node().GPUs[0].PCI.String(), true)
	if words := b.keep(); !strings.Contains(words, want) {
		t.Errorf("got %q, want %q", words, want)
	}
	b.want(nil, nil, nil)
	equal(t, "GPUs in MIG mode", []int{}, b.modes())
}

// Partitions do not outlive a reboot, and a layout of another boot names nothing.
func TestLayout_Reboot(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.lay(balanced)
	must(t, b.node.Hardware().ForceReset(0))
	b = b.restart(inBoot("another-boot"))
	b.lay(balanced)
	b.want(list("0 14@4", "0 19@6", "0 9@0"), nil, nil)
}

func TestLayout_Corrupt(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.lay(balanced)
	file := filepath.Join(b.dir, "layouts", b.name(0)+".json")
	written, err := os.ReadFile(file)
	must(t, err)
	must(t, os.WriteFile(file, []byte("{"), 0o600))
	b = b.restart() // by the copy
	if len(b.notes) != 1 || !strings.Contains(b.notes[0], "its copy is used") {
		t.Errorf("got notes %v, want one of the copy", b.notes)
	}
	b.lay(balanced)
	repaired, err := os.ReadFile(file)
	must(t, err)
	equal(t, "layout", string(written), string(repaired))
	b.want(list("0 14@4", "0 19@6", "0 9@0"), nil, nil)
	must(t, os.WriteFile(file, []byte("{"), 0o600))
	must(t, os.WriteFile(filepath.Join(b.dir, "layouts", "copies", b.name(0)+".json"), nil, 0o600))
	b = b.restart()
	if len(b.notes) != 1 || !strings.Contains(b.notes[0], "CorruptLayout") {
		t.Errorf("got notes %v, want one of the corrupt layout", b.notes)
	}
	b.lay(nil)
	b.want(list("0 14@4", "0 19@6", "0 9@0"), nil, nil)
	b.offer(0, balanced)
	b.prepare("a", b.name(0, 9, 0))
}

// dying is one more plugin process on the node, that dies at a step of its hardware or disk. dead reports whether it did.
func (b *simBed) dying(at int, do func(e *Preparer, session *nvml.Session)) (dead bool) {
	b.t.Helper()
	steps := 0
	step := func(string) {
		if steps++; steps > at {
			panic(errKilled)
		}
	}
	session, err := nvml.OpenLibrary(b.t.Context(), hookedLibrary{simulated.Library(b.node), step}, b.node.Sysfs())
	must(b.t, err)
	o, err := stateIn(b.dir, hookedDisk{Disk: store.Disk{}, step: step})
	must(b.t, err)
	o.Specs = b.specs.under
	e := New(o)
	must(b.t, e.Load(b.t.Context(), nil))
	e.SetHardware(offeredHardware{session, b.offers}, b.specs)
	defer e.die()
	return dies(func() { do(e, session) })
}

// Wherever the plugin is killed while it changes a layout, the next one ends with just the layout, and unmanaged
// partitions are still there.
func TestLayout_KilledAtAnyStep(t *testing.T) {
	two := cutInto(place(5, 0, 4), place(19, 4, 1))
	kills := 0
	for at := range 200 {
		b := newSimBed(t, "hgx-h100", func(node *sim.Node) { occupy(t, node, 0, 19, 6, 1) })
		b.lay(balanced)
		dead := b.dying(at, func(e *Preparer, session *nvml.Session) {
			b.offers[0] = policy.Offer{Partitions: two}
			e.Partitions.FindUnmanaged(t.Context())
			e.Partitions.KeepLayouts(t.Context(), e.backend.Load().hardware.Node())
		})
		b = b.restart()
		b.lay(two)
		b.want(list("0 19@4", "0 19@6", "0 5@0"), nil, nil)
		if diff := cmp.Diff(list(b.name(0)+" 5@0", b.name(0)+" 19@4"), b.layoutFiles()); diff != "" {
			t.Errorf("killed at step %d: layouts on record (-want +got):\n%s", at, diff)
		}
		b.lay(nil)
		b.want(list("0 19@6"), nil, nil)
		if !dead {
			break
		}
		kills++
	}
	if kills < 15 {
		t.Errorf("the plugin was killed at %d steps only: do the hooks work?", kills)
	}
}

// A step that fails is reported, and the next attempt makes up for it.
func TestLayout_StepFails(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	for name, fault := range map[string]func() (mend func()){
		"disk": func() func() {
			b.disk.fail = failOp("WriteFile", syscall.ENOSPC)
			return func() { b.disk.fail = nil }
		},
		"hardware": func() func() {
			if _, err := b.node.Faults().Inject(sim.Fault{GPU: 0, Call: "nvmlGpuInstanceCreateComputeInstance", Code: sim.CodeUnknown}); err != nil {
				t.Fatal(err)
			}
			return func() {
				must(t, b.node.Faults().Clear(0))
			}
		},
	} {
		b.offer(0, balanced)
		mend := fault()
		if got := b.keep(); !strings.HasPrefix(got, b.name(0)) {
			t.Errorf("%s: got %q, want a problem of %s", name, got, b.name(0))
		}
		b.want(nil, nil, nil)
		mend()
		b.kept()
		b.want(list("0 14@4", "0 19@6", "0 9@0"), nil, nil)
		b.lay(nil)
		b.want(nil, nil, nil)
	}
}
