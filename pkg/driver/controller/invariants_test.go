// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/health"
)

// randomRules are what a GPU may be offered as in the tests.
var randomRules = []string{
	"", "exclude: true", "tiers: [exclusive]", "tiers: [mig]", "tiers: [timeSlice], timeSlice: {shares: 8}", "tiers: [timeSlice, mps]",
	"tiers: [mig], publish: {counters: [memory, multiprocessors], omitProfiles: [+me]}", "mig: {layout: {1g.10gb: 7}}", "mig: {layout: {3g.40gb: 2}}", "tiers: [mig, exclusive], mig: {profiles: [1g.10gb, 2g.20gb]}", "tiers: []",
}

// randomBed is a node of eight GPUs that is led through random observations.
type randomBed struct {
	*bed
	random *rand.Rand
	// allocated are the shapes that claims have. A claim is allocated only what is published and not tainted.
	allocated []gpu.Shape
	published []nodeslices.Slice
	aspects   Aspect
}

func newRandomBed(t *testing.T, seed uint64) *randomBed {
	return &randomBed{bed: newBed(t, "hgx-h100"), random: rand.New(rand.NewPCG(seed, 1))}
}

// chance is true in one of n cases.
func (b *randomBed) chance(n int) bool { return b.random.IntN(n) == 0 }

// change changes some of what is observed.
func (b *randomBed) change() {
	b.Now = b.Now.Add(time.Duration(b.random.IntN(8000)) * time.Millisecond)
	b.aspects = Aspect(b.random.IntN(int(Periodic) << 1))
	if b.chance(3) {
		rules := "rules:\n"
		for i := range 8 {
			rules += fmt.Sprintf("- {match: {indexes: [%d]}, %s}\n", i, randomRules[b.random.IntN(len(randomRules))])
		}
		b.write("default.yaml", rules)
	}
	toggle := func(err *error) {
		if *err = nil; b.chance(3) {
			*err = errors.New("away")
		}
	}
	toggle(&b.MPS)
	b.Cluster = cluster.State{}
	if b.chance(6) {
		b.Cluster.Node.PluginResources = []cluster.PluginResource{{Name: "nvidia.com/gpu", Quantity: "8"}}
	}
	b.Conditions = map[gpu.PCIAddress][]health.Condition{}
	b.Incomplete = map[string]error{}
	for i := range b.Inventory.GPUs {
		if b.chance(6) {
			b.Conditions[b.Inventory.GPUs[i].PCI] = []health.Condition{{Reason: "gpu-lost"}}
		}
		if b.chance(10) {
			b.Incomplete[b.device(i)] = errors.New("no device node")
		}
	}
	b.Unfinished, b.Lists = b.chance(3), b.chance(2)
	b.Arrived, b.Listed = !b.chance(3), b.Now
	if b.chance(3) {
		b.Names = nil
	} else if b.chance(4) {
		b.Names = []DriverName{{Driver: "gpu.example.com"}}
	}
	b.setAllocations()
}

// setAllocations has the records of what is allocated observed.
func (b *randomBed) setAllocations() {
	b.Unclaimed = map[gpu.PCIAddress][]gpu.Place{}
	b.Allocations = nil
	for i, s := range b.allocated {
		d := records.Device{Device: s.Name(), GPU: s.GPU.PCI.DeviceName()}
		if s.IsPartition() {
			d.Partition = &gpu.Partition{ProfileID: s.Profile.ID, Placement: s.Placement}
		}
		if s.IsShare() {
			d.Share = &records.Share{Kind: s.Share}
		}
		b.Allocations = append(b.Allocations, &records.Record{
			Claim: records.Claim{Name: fmt.Sprint(i)}, State: records.Prepared, Devices: []records.Device{d},
		})
	}
	b.Records = b.Allocations
}

// claim releases some devices and allocates others that are published without a taint.
func (b *randomBed) claim() {
	b.allocated = slices.DeleteFunc(slices.Clone(b.allocated), func(gpu.Shape) bool { return b.chance(3) })
	free := map[string]bool{}
	for _, s := range b.published {
		for _, d := range s.Devices {
			free[d.Name] = len(d.Taints) == 0
		}
	}
	node := b.Memory.Published.Node
	for i := range node.GPUs {
		shapes := node.Shapes(&node.GPUs[i])
		if len(shapes) == 0 || b.chance(2) {
			continue
		}
		s := shapes[b.random.IntN(len(shapes))]
		sameGPU := slices.DeleteFunc(slices.Clone(b.allocated), func(h gpu.Shape) bool { return h.GPU.PCI != s.GPU.PCI })
		if free[s.Name()] && !slices.ContainsFunc(b.allocated, s.Overlaps) && s.FitsAlongside(sameGPU) {
			b.allocated = append(b.allocated, s)
		}
	}
	b.setAllocations()
}

// consumption is what the devices of slices consume, and the counters there are, by device and by counter set.
func consumption(all []nodeslices.Slice) (devices map[string][]resourceapi.DeviceCounterConsumption, counters map[string]resourceapi.CounterSet) {
	devices, counters = map[string][]resourceapi.DeviceCounterConsumption{}, map[string]resourceapi.CounterSet{}
	for _, s := range all {
		for _, d := range s.Devices {
			devices[d.Name] = d.ConsumesCounters
		}
		for _, c := range s.SharedCounters {
			counters[c.Name] = c
		}
	}
	return devices, counters
}

var sameErrors = cmp.Comparer(func(a, b error) bool { return text(a) == text(b) })

// For any sequence of observations no allocated device ever leaves the plan, also where a part of the claims is yet to be prepared and
// is known only by a listing. What cannot be allocated together is excluded, equal observations give equal plans, and a plan changes
// nothing of the one before.
func TestDesired_Invariants(t *testing.T) {
	for seed := range uint64(7) {
		unprepared := seed > 2
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			b := newRandomBed(t, seed)
			hidden, published := map[string]bool{}, 0
			for step := range 60 {
				b.change()
				if unprepared {
					b.hide(hidden)
				}
				published += b.plans(step)
				before := slices.Clone(b.allocated)
				b.claim()
				for _, s := range b.allocated {
					if unprepared && !slices.Contains(before, s) && b.chance(2) {
						hidden[s.Name()] = true
					}
				}
			}
			if published < 20 {
				t.Errorf("published %d times, which shows little", published)
			}
		})
	}
}

// hide has claims known only once they are listed.
func (b *randomBed) hide(hidden map[string]bool) {
	b.Listed = time.Time{}
	if !b.plan.List.IsZero() {
		b.Listed = b.Now
		clear(hidden)
	}
	b.Allocations = slices.DeleteFunc(b.Allocations, func(r *records.Record) bool { return hidden[r.Devices[0].Device] })
	b.Records = b.Allocations
}

// plans makes plans until the node need not be observed again, and returns how many of them publish.
func (b *randomBed) plans(step int) (published int) {
	b.t.Helper()
	for b.Pass = 0; ; b.Pass++ {
		b.Changed = b.aspects
		var offers []policy.Offer
		if was := b.Memory.Offered; was != nil {
			offers = slices.Clone(was.Offers)
		}
		p, again := Desired(b.Observed), Desired(b.Observed)
		if !reflect.DeepEqual(p, again) { // cmp.Diff of two plans takes a second
			b.t.Fatalf("step %d: equal observations give two plans:\n%s", step, cmp.Diff(p, again, sameErrors))
		}
		if was := b.Memory.Offered; was != nil && !reflect.DeepEqual(offers, was.Offers) {
			b.t.Fatalf("step %d: the plan before has changed (-before +after):\n%s", step, cmp.Diff(offers, was.Offers))
		}
		b.plan, b.Memory, b.aspects = p, p.Memory, 0
		if p.Slices != nil {
			published++
			b.checkAllocated(step, p.Slices)
			b.published = p.Slices
		}
		if !p.ObserveAgain {
			return published
		}
	}
}

// checkAllocated fails unless slices have all devices that are allocated, and exclude what cannot be allocated together.
func (b *randomBed) checkAllocated(step int, now []nodeslices.Slice) {
	b.t.Helper()
	var allocated []string
	for _, s := range b.allocated {
		allocated = append(allocated, s.Name())
	}
	if err := errors.Join(checkSlices(now, allocated), checkCounted(now, b.Inventory)); err != nil {
		b.t.Errorf("step %d: %v", step, err)
	}
}

// checkCounted fails unless slices by themselves keep the scheduler from allocating together what a GPU cannot have
// together: either all devices of a GPU consume what they take of all that it has, or all can be allocated at once.
func checkCounted(all []nodeslices.Slice, inventory *gpu.Node) error {
	devices, counters := consumption(all)
	for i := range inventory.GPUs {
		g := &inventory.GPUs[i]
		has := map[string]int64{}
		for name, c := range counters[g.PCI.DeviceName()].Counters {
			has[name] = c.Value.Value()
		}
		var published []gpu.Shape
		for _, s := range append(g.PartitionShapes(), g.Whole(), gpu.Shape{GPU: g, Share: gpu.TimeSlice}, gpu.Shape{GPU: g, Share: gpu.MPS}) {
			if _, ok := devices[s.Name()]; ok {
				published = append(published, s)
			}
		}
		if len(has) == 0 {
			if !gpu.Coexist(published, g.Counters()) {
				return fmt.Errorf("%s has no counters, and what it offers cannot be allocated at once", g.PCI.DeviceName())
			}
			continue
		}
		for _, c := range g.Counters() {
			if has[c.Name] != c.Value {
				return fmt.Errorf("%s has %d of counter %s, want %d", g.PCI.DeviceName(), has[c.Name], c.Name, c.Value)
			}
		}
		for _, s := range published {
			for _, want := range s.Consumes() {
				consumed := devices[s.Name()]
				if len(consumed) != 1 || consumed[0].CounterSet != g.PCI.DeviceName() {
					return fmt.Errorf("%s consumes %v, want counters of its GPU", s.Name(), consumed)
				}
				if got := consumed[0].Counters[want.Name].Value; got.Value() != want.Value {
					return fmt.Errorf("%s consumes %s of %s, want %d", s.Name(), got.String(), want.Name, want.Value)
				}
			}
		}
	}
	return nil
}
