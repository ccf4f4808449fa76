// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// shapeClasses are DeviceClasses of a driver, one for each shape that it publishes, and one for all partitions.
func shapeClasses(published []*resourceapi.ResourceSlice) []*resourceapi.DeviceClass {
	driver := published[0].Spec.Driver
	class := func(name, expression string) *resourceapi.DeviceClass {
		c := &resourceapi.DeviceClass{}
		c.Name = name
		c.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf(`device.driver == %q && `, driver) + expression,
		}}}
		return c
	}
	all := []*resourceapi.DeviceClass{class("mig", fmt.Sprintf(`device.attributes[%q].type == "mig"`, driver))}
	for _, s := range published {
		for _, d := range s.Spec.Devices {
			var expression string
			name := *d.Attributes["type"].StringValue
			if p, ok := d.Attributes["profile"]; ok {
				name = strings.ReplaceAll(*p.StringValue, "+", ".")
				expression = fmt.Sprintf(`device.attributes[%q].?profile.orValue("") == %q`, driver, *p.StringValue)
			} else {
				expression = fmt.Sprintf(`device.attributes[%q].type == %q`, driver, name)
			}
			if !slices.ContainsFunc(all, func(c *resourceapi.DeviceClass) bool { return c.Name == name }) {
				all = append(all, class(name, expression))
			}
		}
	}
	return all
}

// measured is a node as the allocator and the measure see it.
type measured struct {
	*Node
	class allocator.Classes
	cache *pools.Cache
	pools *pools.Node
	state *packing.State
	empty *packing.State
}

func newMeasured(t *testing.T, published []*resourceapi.ResourceSlice, rules ...*resourceapi.DeviceTaintRule) *measured {
	t.Helper()
	classes := shapeClasses(published)
	node, err := NewNode(published, classes)
	must(t, err)
	m := &measured{Node: node, class: classes, cache: pools.NewCache()}
	shuffled := slices.Clone(published)
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	if m.pools, err = m.cache.Node(shuffled, rules...); err != nil {
		t.Fatal(err)
	}
	m.state, m.empty = m.pools.NewState(), m.pools.NewState()
	return m
}

// allocate checks that the measure predicts what the allocator does.
func (m *measured) allocate(t *testing.T, claims ...*resourceapi.ResourceClaim) []resourceapi.AllocationResult {
	t.Helper()
	var specs []*resourceapi.ResourceClaimSpec
	for _, c := range claims {
		specs = append(specs, &c.Spec)
	}
	demand, err := pools.NewDemand(m.class.Get, specs...)
	must(t, err)
	requests, err := m.cache.Requests(t.Context(), m.pools, demand)
	must(t, err)
	before := m.state.Clone()
	uses, fits, err := m.state.Fit(requests...)
	if err != nil {
		t.Logf("claims %s: %v", demand.Key, err)
		return nil
	}
	if cost := m.state.Cost(uses); cost.Lost < 0 || !m.state.Equal(before) {
		t.Fatalf("Fit or Cost changed the state, or %+v is a gain", cost)
	}
	results, err := m.Allocate(t.Context(), claims...)
	if err != nil && !errors.Is(err, allocator.ErrNoFit) {
		t.Fatal(err)
	}
	var want, got []string
	var all []resourceapi.DeviceRequestAllocationResult
	for _, r := range results {
		for _, d := range r.Devices.Results {
			want = append(want, d.Device)
			all = append(all, d)
		}
	}
	for _, u := range uses {
		got = append(got, m.pools.Model.Devices[u.Device].Name)
	}
	if diff := cmp.Diff(want, got); diff != "" || fits != (err == nil) {
		t.Fatalf("claims %s, with %v: (-allocator +measure)\n%s", demand.Key, err, diff)
	}
	if diff := cmp.Diff(m.pools.Uses(all), m.explicit(uses)); fits && diff != "" {
		t.Fatalf("claims %s: amounts (-allocator +measure)\n%s", demand.Key, diff)
	}
	m.state.Allocate(m.pools.Uses(all)...)
	return results
}

func (m *measured) release(results []resourceapi.AllocationResult) {
	for _, r := range results {
		m.Release(r)
		m.state.Release(m.pools.Uses(r.Devices.Results)...)
	}
}

// randomClaim asks for one to three devices in one or two requests, and for amounts of what is shared.
func randomClaim(random *rand.Rand, name string, all allocator.Classes) *resourceapi.ResourceClaim {
	claim := allocator.NewClaim(name, all[random.IntN(len(all))].Name, 1)
	if random.IntN(4) == 0 {
		second := allocator.NewClaim(name, all[random.IntN(len(all))].Name, 1).Spec.Devices.Requests[0]
		second.Name = "second"
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, second)
	}
	for i := range claim.Spec.Devices.Requests {
		r := claim.Spec.Devices.Requests[i].Exactly
		if random.IntN(3) == 0 {
			r.Count = 1 + random.Int64N(3)
		}
		if random.IntN(8) == 0 {
			r.Tolerations = []resourceapi.DeviceToleration{{Key: "example.com/even", Operator: resourceapi.DeviceTolerationOpExists}}
		}
		if c := r.DeviceClassName; (c == "mps" || c == "timeslice" || c == "gpu") && random.IntN(2) == 0 {
			r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
				"memory": *resource.NewQuantity(random.Int64N(40<<30), resource.BinarySI),
			}}
		}
	}
	if random.IntN(4) == 0 {
		prioritize(random, &claim.Spec.Devices.Requests[random.IntN(len(claim.Spec.Devices.Requests))], all)
	}
	if random.IntN(4) == 0 {
		claim.Spec.Devices.Constraints = append(claim.Spec.Devices.Constraints, randomConstraint(random, claim))
	}
	return claim
}

// prioritize makes a request one of some alternatives.
func prioritize(random *rand.Rand, r *resourceapi.DeviceRequest, all allocator.Classes) {
	for i := range 2 + random.IntN(2) {
		r.FirstAvailable = append(r.FirstAvailable, resourceapi.DeviceSubRequest{
			Name: fmt.Sprintf("alternative-%d", i), DeviceClassName: all[random.IntN(len(all))].Name,
			AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1 + random.Int64N(4),
		})
	}
	last := &r.FirstAvailable[len(r.FirstAvailable)-1]
	last.DeviceClassName, last.Count, last.Capacity = r.Exactly.DeviceClassName, max(1, r.Exactly.Count), r.Exactly.Capacity
	last.Tolerations = r.Exactly.Tolerations
	r.Exactly = nil
}

// randomConstraint is for all requests of a claim, one, or an alternative.
func randomConstraint(random *rand.Rand, claim *resourceapi.ResourceClaim) (c resourceapi.DeviceConstraint) {
	names := []resourceapi.FullyQualifiedName{"gpu.cleave.dev/parentUUID", "gpu.cleave.dev/uuid", "resource.kubernetes.io/numaNode", "gpu.cleave.dev/none"}
	name := &names[random.IntN(len(names))]
	if random.IntN(3) == 0 {
		c.DistinctAttribute = name
	} else {
		c.MatchAttribute = name
	}
	r := claim.Spec.Devices.Requests[0]
	switch {
	case random.IntN(2) == 0:
	case len(r.FirstAvailable) > 0 && random.IntN(2) == 0:
		c.Requests = []string{r.Name + "/" + r.FirstAvailable[0].Name}
	default:
		c.Requests = []string{r.Name}
	}
	return c
}

// checkTrace replays random claims until some leave, and gives all back in the end.
func checkTrace(t *testing.T, m *measured, seed uint64, steps int) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 7))
	var running [][]resourceapi.AllocationResult
	for i := range steps {
		if n := len(running); n > 0 && random.IntN(5) < 2 {
			at := random.IntN(n)
			m.release(running[at])
			running = slices.Delete(running, at, at+1)
			continue
		}
		claims := []*resourceapi.ResourceClaim{randomClaim(random, fmt.Sprintf("claim-%d", i), m.class)}
		if random.IntN(6) == 0 {
			claims = append(claims, randomClaim(random, fmt.Sprintf("second-%d", i), m.class))
		}
		if results := m.allocate(t, claims...); results != nil {
			running = append(running, results)
		}
	}
	for _, r := range running {
		m.release(r)
	}
	if !m.state.Equal(m.empty) {
		t.Error("the state is not that of an empty node once everything is released")
	}
}

// checkTraces replays traces on a node that publishes in an order, without taints and with some.
func checkTraces(t *testing.T, publish Order, node *policy.Node) {
	t.Helper()
	for seed := range uint64(2) {
		published := publish(node)
		if seed > 0 {
			taint(published)
		}
		checkTrace(t, newMeasured(t, published), seed, 60)
	}
}

// TestMeasure_AgreesWithAllocator replays random claims on all node models, in three orders of devices.
func TestMeasure_AgreesWithAllocator(t *testing.T) {
	orders := map[string]Order{"cleave": Cleave, "compatible": Compatible, "peer": Peer}
	for _, name := range simulated.NodeModels() {
		for order, publish := range orders {
			t.Run(name+"/"+order, func(t *testing.T) { checkTraces(t, publish, measuredNode(t, name)) })
		}
	}
}

// taint taints some devices, in two ways, and marks some with what keeps nobody off.
func taint(published []*resourceapi.ResourceSlice) {
	n := 0
	for _, s := range published {
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			switch n++; {
			case n%5 == 0:
				d.Taints = []resourceapi.DeviceTaint{{Key: "example.com/odd", Effect: resourceapi.DeviceTaintEffectNoExecute}}
			case n%4 == 0:
				d.Taints = []resourceapi.DeviceTaint{{Key: "example.com/even", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			case n%3 == 0:
				d.Taints = []resourceapi.DeviceTaint{{Key: "example.com/odd", Effect: resourceapi.DeviceTaintEffectNone}}
			}
		}
	}
}

// measuredNode offers all tiers.
func measuredNode(t *testing.T, name string) *policy.Node {
	t.Helper()
	node := &policy.Node{Node: model(t, name).Node}
	for range node.GPUs {
		node.Offers = append(node.Offers, policy.Offer{
			Whole: true, Partitions: &policy.PartitionOffer{Mode: policy.OnDemand},
			TimeSlice: &policy.Sharing{Shares: 4}, MPS: &policy.Sharing{Shares: 10},
		})
	}
	return node
}

// explicit are uses with the amounts that nil stands for.
func (m *measured) explicit(uses []packing.Use) []packing.Use {
	all := slices.Clone(uses)
	for i := range all {
		d := m.pools.Model.Devices[all[i].Device]
		if !d.Shared || all[i].Amounts != nil {
			continue
		}
		all[i].Amounts = []int64{}
		for _, c := range d.Capacities {
			all[i].Amounts = append(all[i].Amounts, c.Default)
		}
	}
	return all
}
