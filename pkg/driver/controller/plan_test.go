// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/health"
)

// Each row changes a node that was brought in line, and compares what is done on the hardware, reported and published, and when
// to look again.
func TestDesired(t *testing.T) {
	away := errors.New("connection refused")
	const layout = "rules: [{mig: {layout: {1g.10gb: 7}}}]"
	usedBy := func(pid int) []LayoutProblem {
		return []LayoutProblem{{"gpu-0", fmt.Errorf("%w by process %d", gpu.ErrInUse, pid)}}
	}
	inUse := usedBy(1)
	tests := map[string]struct {
		policy  string
		before  func(b *bed) // before the node is brought in line
		change  func(b *bed)
		changed Aspect

		work      string
		events    []string
		published bool
		look      time.Duration // from now; zero for never
	}{
		"nothing":                  {change: func(*bed) {}, work: ""},
		"partition of another":     {change: func(b *bed) { b.Occupied = []string{b.device(0)} }, changed: Partitions, work: "layouts", published: true},
		"existing partition":       {change: func(b *bed) { b.Existing = []Existing{{b.every(0)[4], "MIG-1"}} }, changed: Partitions, work: "layouts", published: true},
		"GPU allocated, order new": {change: func(b *bed) { b.allocate(records.Device{GPU: b.device(7)}) }, changed: Allocations, work: "leave MIG mode", published: true},
		"admin access": {change: func(b *bed) { b.allocate(records.Device{GPU: b.device(7), AdminAccess: true}) }, changed: Allocations,
			work: "leave MIG mode"},
		"claim specs deleted": {change: func(*bed) {}, changed: ClaimSpecs, work: "recover, leave MIG mode, layouts"},
		"periodic":            {change: func(*bed) {}, changed: Periodic, work: "recover, leave MIG mode, layouts"},
		"unfinished": {change: func(b *bed) { b.Unfinished = true }, changed: Allocations,
			work: "leave MIG mode", look: finishEvery},
		"unfinished for long": {before: func(b *bed) { b.Unfinished = true }, change: func(b *bed) { b.Now = b.Now.Add(finishEvery) },
			work: "recover, leave MIG mode, layouts", look: finishEvery},
		"finished": {before: func(b *bed) { b.Unfinished = true }, change: func(b *bed) { b.Unfinished = false }, changed: Allocations, work: "leave MIG mode"},
		"layout problem": {policy: layout, change: func(b *bed) { b.LayoutProblems = inUse }, work: "",
			events: []string{"Warning LayoutNotApplied"}, look: finishEvery},
		"layout problem, another process": {policy: layout, before: func(b *bed) { b.LayoutProblems = inUse },
			change: func(b *bed) { b.LayoutProblems = usedBy(2) }, look: finishEvery},
		"layout problem, another cause": {policy: layout, before: func(b *bed) { b.LayoutProblems = inUse }, change: func(b *bed) {
			err := errors.Join(errors.Join(usedBy(2)[0].Err), errors.New("an unmanaged partition is in the way"))
			b.LayoutProblems = []LayoutProblem{{"gpu-0", err}}
		}, events: []string{"Warning LayoutNotApplied"}, look: finishEvery},
		"layout problem for long": {policy: layout, before: func(b *bed) { b.LayoutProblems = inUse }, change: func(b *bed) { b.Now = b.Now.Add(finishEvery) },
			work: "recover, leave MIG mode, layouts", look: finishEvery},
		"layout problem solved": {policy: layout, before: func(b *bed) { b.LayoutProblems = inUse }, change: func(b *bed) { b.LayoutProblems = nil },
			events: []string{"Normal LayoutApplied"}},
		"layout incomplete, claim released": {policy: layout, before: func(b *bed) { b.allocate(records.Device{GPU: b.device(0)}) },
			change: func(b *bed) { b.allocate() }, changed: Allocations, work: "leave MIG mode, layouts", published: true},
		"partition of an earlier layout, claim released": {policy: "rules: [{tiers: [mig]}]", before: func(b *bed) {
			part := &gpu.Partition{ProfileID: 19, Placement: gpu.Placement{Size: 1}, Existing: true}
			b.Unclaimed = map[gpu.PCIAddress][]gpu.Place{b.Inventory.GPUs[0].PCI: {part.Place()}}
			b.Layouts = b.Unclaimed
			b.allocate(records.Device{GPU: b.device(0), Device: b.device(0) + "-mig-19-0", Partition: part})
		}, change: func(b *bed) { b.allocate() }, changed: Allocations, work: "leave MIG mode, layouts"},
		"policy removes a layout": {policy: layout, change: func(b *bed) { b.write("default.yaml", "rules: [{tiers: [mig]}]") }, changed: Policies,
			work: "layouts", events: []string{"Normal PolicyApplied"}, published: true},
		"supervisor away": {change: func(b *bed) { b.MPS = away }, changed: Supervisor, work: "recover, leave MIG mode, layouts", published: true},
		"supervisor away, MPS in use": {before: func(b *bed) { b.allocate(records.Device{GPU: b.device(0), Share: &records.Share{Kind: gpu.MPS}}) },
			change: func(b *bed) { b.MPS = away }, changed: Supervisor, work: "recover, leave MIG mode, layouts", events: []string{"Warning MPSSupervisorAway"}, published: true},
		"supervisor back": {before: func(b *bed) {
			b.allocate(records.Device{GPU: b.device(0), Share: &records.Share{Kind: gpu.MPS}})
			b.MPS = away
		},
			change: func(b *bed) { b.MPS = nil }, changed: Supervisor, work: "recover, leave MIG mode, layouts", published: true},
		"GPU unhealthy": {change: func(b *bed) {
			b.Conditions = map[gpu.PCIAddress][]health.Condition{b.Inventory.GPUs[0].PCI: {{Reason: "gpu-lost", Message: "lost"}}}
		}, changed: Health, published: true},
		"CDI spec incomplete": {change: func(b *bed) { b.Incomplete = map[string]error{b.device(0): away, b.device(1): away} }, changed: Specs,
			events: []string{"Warning DriverIncomplete"}, published: true},
		"CDI spec complete": {before: func(b *bed) { b.Incomplete = map[string]error{b.device(0): away} }, change: func(b *bed) { b.Incomplete = nil }, changed: Specs,
			events: []string{"Normal DriverComplete"}, published: true},
		"lists accepted":           {change: func(b *bed) { b.Lists = true }, changed: Cluster, published: true},
		"driver released by label": {change: func(b *bed) { b.Cluster.Node.ReleaseDriver = true }, changed: Cluster, published: true},
		"driver gone":              {change: func(b *bed) { b.Driver = gpu.ErrDriverNotLoaded }, changed: Driver, published: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, "hgx-h100")
			if tt.policy != "" {
				b.write("default.yaml", tt.policy)
			}
			if tt.before != nil {
				tt.before(b)
			}
			b.step(Inventory | Policies)
			b.heard()
			b.slices = nil
			tt.change(b)
			b.step(tt.changed)
			if got := b.work(); got != tt.work {
				t.Errorf("work: got %q, want %q", got, tt.work)
			}
			if diff := cmp.Diff(tt.events, reasons(b.heard())); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
			if (b.slices != nil) != tt.published {
				t.Errorf("published %t, want %t", b.slices != nil, tt.published)
			}
			var look time.Duration
			if !b.plan.LookAgain.IsZero() {
				look = b.plan.LookAgain.Sub(b.Now)
			}
			if look != tt.look {
				t.Errorf("look again after %s, want %s", look, tt.look)
			}
		})
	}
}

// What lies on the GPUs is known after the first recovery only: a layout that is fitted without it would move.
func TestDesired_FirstPublication(t *testing.T) {
	for name, tt := range map[string]struct {
		ready, mig  bool
		first, last bool // whether there are slices in the first pass and after recovery and layouts
		recover     bool
	}{
		"claims cannot be prepared yet":  {ready: false},
		"no GPU in MIG mode":             {ready: true, first: true, recover: true},
		"GPU in MIG mode: recover first": {ready: true, mig: true, last: true, recover: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, "hgx-h100")
			b.Ready = tt.ready
			if tt.mig {
				inventory := *b.Inventory
				inventory.GPUs = slices.Clone(inventory.GPUs)
				inventory.GPUs[0].MIG.Enabled = true
				b.Inventory = &inventory
			}
			b.Changed = Inventory | Policies
			p := Desired(b.Observed)
			if (p.Slices != nil) != tt.first || p.Recover != tt.recover || p.Layouts || p.Offer == nil {
				t.Errorf("first pass: slices %t, recover %t, layouts %t; want %t, %t, false", p.Slices != nil, p.Recover, p.Layouts, tt.first, tt.recover)
			}
			if p.ObserveAgain != tt.recover {
				t.Errorf("observe again: got %t, want %t", p.ObserveAgain, tt.recover)
			}
			b.Memory, b.Changed, b.Pass = p.Memory, 0, 1
			if p = Desired(b.Observed); p.Slices != nil || p.Recover || p.Layouts != tt.ready || p.ObserveAgain != tt.ready {
				t.Errorf("second pass: slices %t, recover %t, layouts %t, observe again %t; want false, false, %t, %t",
					p.Slices != nil, p.Recover, p.Layouts, p.ObserveAgain, tt.ready, tt.ready)
			}
			b.Memory, b.Pass = p.Memory, 2
			if p = Desired(b.Observed); (p.Slices != nil) != tt.last || p.Recover || p.Layouts || p.ObserveAgain {
				t.Errorf("third pass: slices %t, recover %t, layouts %t, observe again %t; want %t, false, false, false",
					p.Slices != nil, p.Recover, p.Layouts, p.ObserveAgain, tt.last)
			}
		})
	}
}

// Where what is offered never settles, the node is published all the same.
func TestDesired_NeverSettles(t *testing.T) {
	b := newBed(t, "a30")
	b.rules("{mig: {mode: existing}}")
	for b.Pass = 0; ; b.Pass++ {
		places := []gpu.Place{{ProfileID: 14, Placement: gpu.Placement{Start: b.Pass % 2, Size: 1}}}
		b.Unclaimed = map[gpu.PCIAddress][]gpu.Place{b.Inventory.GPUs[0].PCI: places, b.Inventory.GPUs[1].PCI: places}
		p := Desired(b.Observed)
		b.Memory = p.Memory
		if !p.ObserveAgain {
			break
		}
	}
	if b.Pass > maxPasses {
		t.Errorf("%d passes, want at most %d", b.Pass, maxPasses)
	}
}

func TestDesired_Release(t *testing.T) {
	b := newBed(t, "a30")
	b.step(Policies)
	for name, change := range map[string]func(o *Observed){
		"label":  func(o *Observed) { o.Cluster.Node.ReleaseDriver = true },
		"driver": func(o *Observed) { o.Driver = gpu.ErrDriverNotLoaded },
	} {
		o := b.Observed
		change(&o)
		o.Changed = Cluster | Driver | Periodic
		p := Desired(o)
		if p.Release == nil || p.Recover || p.Layouts || p.ObserveAgain {
			t.Errorf("%s: got %v, recover %t, layouts %t, want a release and nothing else", name, p.Release, p.Recover, p.Layouts)
		}
		for _, s := range p.Slices {
			for _, d := range s.Devices {
				if !slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == nodeslices.TaintDraining }) {
					t.Errorf("%s: device %s has taints %v, want %s", name, d.Name, d.Taints, nodeslices.TaintDraining)
				}
			}
		}
		o.Ready = false
		if p := Desired(o); p.Release != nil {
			t.Errorf("%s, before claims can be prepared: got %v", name, p.Release)
		}
	}
}

// What a plugin that was killed left half done is finished before the session of the driver ends, in which it is known for
// Cleave's own.
func TestDesired_ReleaseAfterRecovery(t *testing.T) {
	b := newBed(t, "a30")
	b.Cluster.Node.ReleaseDriver, b.Changed = true, Inventory|Policies|Cluster
	first := Desired(b.Observed)
	if first.Release != nil || !first.Recover || !first.ObserveAgain {
		t.Errorf("first pass: release %v, recover %t, observe again %t; want none, true, true", first.Release, first.Recover, first.ObserveAgain)
	}
	b.Memory, b.Pass, b.Changed = first.Memory, 1, 0
	if second := Desired(b.Observed); second.Release == nil {
		t.Error("second pass: got no release")
	}
}

// The time in which devices of the policy before stay begins when they are published with their taint: a recovery may take
// longer than that time.
func TestDesired_WithdrawnUntilPublished(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.step(Inventory | Policies)
	b.write("default.yaml", "rules: [{tiers: [exclusive]}]")
	b.Changed, b.Pass = Policies|Periodic, 0
	p := Desired(b.Observed)
	if !p.ObserveAgain || p.Slices != nil || p.Memory.Previous == nil {
		t.Fatalf("first pass: observe again %t, slices %t, previous %t; want true, false, true", p.ObserveAgain, p.Slices != nil, p.Memory.Previous != nil)
	}
	b.Memory, b.Changed, b.Now = p.Memory, 0, b.Now.Add(2*arriveAtMost)
	for b.Pass = 1; p.ObserveAgain; b.Pass++ {
		p = Desired(b.Observed)
		b.Memory = p.Memory
	}
	if want := b.Now.Add(arriveAtMost); p.Slices == nil || p.Memory.Previous == nil || !p.LookAgain.Equal(want) {
		t.Errorf("publication: slices %t, previous %t, look again %s; want true, true, %s", p.Slices != nil, p.Memory.Previous != nil, p.LookAgain, want)
	}
}

func TestReleaseReason(t *testing.T) {
	for name, tt := range map[string]struct {
		release bool
		missing error
		want    string // empty: it can be used
		paused  string
	}{
		"can be used":    {},
		"label":          {release: true, want: "gpu.cleave.dev/release-driver=true"},
		"driver missing": {missing: gpu.ErrDriverNotLoaded, want: "went away"},
		"both":           {release: true, missing: gpu.ErrDriverNotLoaded, want: "gpu.cleave.dev/release-driver"},
		"paused":         {paused: "nvidia.com/gpu.deploy.client=paused-for-driver-upgrade", want: "gpu.deploy.client=paused-for-driver-upgrade: "},
		"two owners":     {release: true, paused: "nvidia.com/gpu.deploy.client=paused-for-mig-change", want: "gpu.cleave.dev/release-driver"},
		"being replaced": {paused: "nvidia.com/gpu.deploy.dcgm=paused-for-driver-upgrade", missing: gpu.ErrDriverNotLoaded, want: "gpu.deploy.dcgm"},
	} {
		why := ReleaseReason(cluster.Node{ReleaseDriver: tt.release, Paused: tt.paused}, tt.missing)
		if byLabel := tt.release || tt.paused != ""; errors.Is(why, ErrReleaseRequested) != byLabel {
			t.Errorf("%s: %v is by label: %t, want %t", name, why, !byLabel, byLabel)
		}
		got := text(why)
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

func TestDesired_Inventory(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.step(Inventory | Policies)
	b.heard()
	all := b.Inventory
	var events []string
	change := func(edit func(n *gpu.Node)) {
		n := *all
		n.GPUs = slices.Clone(all.GPUs)
		edit(&n)
		b.Inventory = &n
	}
	for _, tt := range []struct {
		name    string
		edit    func(n *gpu.Node)
		events  []string
		removed int
		gpus    int
		same    bool // GPUs as before, in an inventory that was read anew
	}{
		{"removed", func(n *gpu.Node) { n.GPUs = n.GPUs[:7] }, []string{"Warning GPURemoved"}, 1, 7, false},
		{"added", func(*gpu.Node) {}, []string{"Normal GPUAdded"}, 0, 8, false},
		{"replaced", func(n *gpu.Node) { n.GPUs[3].UUID = "GPU-other" }, []string{"Normal GPUReplaced"}, 0, 8, false},
		{"unreadable", func(n *gpu.Node) {
			n.GPUs[3].UUID = "GPU-other"
			n.Problems = []gpu.Problem{{Index: 8, Err: errors.New("GPU 8 cannot be read")}}
		}, []string{"Warning UnreadableGPU"}, 0, 8, false},
		{"unreadable, reported", func(n *gpu.Node) {
			n.GPUs[3].UUID = "GPU-other"
			n.Problems = []gpu.Problem{{Index: 8, Err: errors.New("GPU 8 cannot be read")}}
		}, nil, 0, 8, true},
		{"unreadable for long", func(n *gpu.Node) {
			b.Now = b.Now.Add(cluster.RepeatAfter)
			n.GPUs[3].UUID = "GPU-other"
			n.Problems = []gpu.Problem{{Index: 8, Err: errors.New("GPU 8 cannot be read")}}
		}, []string{"Warning UnreadableGPU"}, 0, 8, true},
		{"MIG mode needs a reset", func(n *gpu.Node) {
			n.GPUs[3].UUID = "GPU-other"
			n.GPUs[3].MIG.NeedsReset, n.GPUs[3].Virtualization = true, gpu.PassThrough
		}, []string{"Warning MIGModeNeedsReset"}, 0, 8, false},
	} {
		change(tt.edit)
		b.Changed, b.Pass = Inventory, 0
		p := Desired(b.Observed)
		b.step(Inventory)
		events = b.heard()
		if diff := cmp.Diff(tt.events, reasons(events)); diff != "" {
			t.Errorf("%s: Events (-want +got):\n%s", tt.name, diff)
		}
		if len(p.Removed) != tt.removed || p.Status.GPUs != tt.gpus || p.NewInventory == tt.same || p.Recover == tt.same {
			t.Errorf("%s: removed %v, %d GPUs, new %t, recover %t; want %d, %d, %t, %t", tt.name, p.Removed, p.Status.GPUs,
				p.NewInventory, p.Recover, tt.removed, tt.gpus, !tt.same, !tt.same)
		}
	}
	if said := strings.Join(events, "\n"); !strings.Contains(said, "reboot") {
		t.Errorf("of a virtual machine that needs a reboot it says %q", said)
	}
}

func TestDesired_Taints(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.rules("{health: {reaction: NoExecute}}")
	b.Conditions = map[gpu.PCIAddress][]health.Condition{b.Inventory.GPUs[1].PCI: {{Reason: "gpu-lost"}, {Reason: "xid-79"}}}
	b.Incomplete = map[string]error{b.device(2): errors.New("no /dev/nvidia2")}
	b.Occupied = []string{b.device(3)}
	b.MPS = errors.New("connection refused")
	b.step(Health | Specs | Partitions | Supervisor)
	for key, want := range map[string][]string{
		nodeslices.TaintUnhealthy: b.every(1), nodeslices.TaintIncomplete: b.every(2), nodeslices.TaintOccupied: {b.device(3)},
		nodeslices.TaintNoMPS: ofKind(b.plan.Offer, gpu.MPS), nodeslices.TaintDraining: nil, nodeslices.TaintConflict: nil,
	} {
		if diff := cmp.Diff(want, b.tainted(key)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
	}
	for _, taint := range b.Memory.Published.Taints {
		if taint.Key == nodeslices.TaintUnhealthy && (taint.Value != "gpu-lost" || taint.Effect != resourceapi.DeviceTaintEffectNoExecute) {
			t.Errorf("got %+v, want the worst condition with the policy's effect", taint)
		}
	}
	spares := health.Condition{Reason: "needs-drain-and-reset", SparesRunning: true}
	for want, conditions := range map[resourceapi.DeviceTaintEffect][]health.Condition{
		resourceapi.DeviceTaintEffectNoSchedule: {spares}, resourceapi.DeviceTaintEffectNoExecute: {spares, {Reason: "xid-94"}},
	} {
		taints := HealthTaints(b.plan.Offer, map[gpu.PCIAddress][]health.Condition{b.Inventory.GPUs[1].PCI: conditions})
		if len(taints) == 0 || taints[0].Value != spares.Reason || taints[0].Effect != want {
			t.Errorf("got %+v for %v, want %s with effect %s", taints[:min(1, len(taints))], conditions, spares.Reason, want)
		}
	}
}

func TestLacksPartitions(t *testing.T) {
	b := newBed(t, "a30")
	b.rules("{match: {indexes: [1]}, mig: {layout: {1g.6gb: 2}}}, {tiers: [exclusive]}")
	node, pci := b.plan.Offer, b.Inventory.GPUs[1].PCI
	places := node.Offers[1].Partitions.Places
	if len(places) != 2 {
		t.Fatalf("the layout has places %v, want two", places)
	}
	for name, tt := range map[string]struct {
		there []gpu.Place
		want  bool
	}{"none": {nil, true}, "one of two": {places[:1], true}, "all": {places, false}} {
		if got := lacksPartitions(node, map[gpu.PCIAddress][]gpu.Place{pci: tt.there}); got != tt.want {
			t.Errorf("%s: got %t, want %t", name, got, tt.want)
		}
	}
}
