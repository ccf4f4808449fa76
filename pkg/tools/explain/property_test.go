// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
)

// A device is free in the eyes of this package exactly where the scheduler's allocator gives it to a claim, whatever is allocated.
func TestJudge_AgreesWithAllocator(t *testing.T) {
	requests := []resourceapi.DeviceRequest{
		asks("gpu.cleave.dev", 1), asks("mig-1g.10gb.cleave.dev", 1), asks("mig-1g.10gb.me.cleave.dev", 1), asks("mig-1g.20gb.cleave.dev", 1),
		asks("mig-2g.20gb.cleave.dev", 1), asks("mig-3g.40gb.cleave.dev", 1), asks("mig-4g.40gb.cleave.dev", 1), asks("mig-7g.80gb.cleave.dev", 1),
		asks("timeslice.cleave.dev", 1), asks("timeslice.cleave.dev", 1, "memory=30Gi"), asks("mps.cleave.dev", 1),
		asks("mps.cleave.dev", 1, "memory=50Gi", "cores=7"), asks("mps.cleave.dev", 1, "cores=70"),
		asks("mps.cleave.dev", 1, "memory=81001Mi"), asks("timeslice.cleave.dev", 1, "memory=80900Mi"), asks("mps.cleave.dev", 1, "memory=19561Mi"),
	}
	random := rand.New(rand.NewPCG(1, 2))
	b := newBed(t, "hgx-h100")
	b.taint("example.com/rma", "", "gpu-0000-43-00-0")
	fits := map[bool]int{}
	c := NewCluster(b.Objects)
	for i := range b.slices {
		c.AddSlice(&b.slices[i])
	}
	for step := range 60 {
		c.uses = usesOf(nil, b.Claims...)
		s, err := c.site(b.Nodes[0])
		b.must(err)
		for _, r := range requests {
			asked := claim("asked", r)
			want := b.try("node-1", asked) != nil
			fits[want]++
			if v := c.judge(t.Context(), s, requestsOf(asked)[0]); (v.free > 0) != want {
				t.Fatalf("step %d, %s %v: %d devices are free, and the allocator finds one: %t", step, r.Exactly.DeviceClassName, r.Exactly.Capacity, v.free, want)
			}
		}
		if random.IntN(3) == 0 && len(b.Claims) > 0 {
			at := random.IntN(len(b.Claims))
			b.Claims = slices.Delete(b.Claims, at, at+1)
			continue
		}
		next := claim(fmt.Sprint("claim-", step), requests[random.IntN(len(requests))])
		if results := b.try("node-1", next); results != nil {
			next.Status.Allocation = &results[0]
			b.Claims = append(b.Claims, next)
		}
	}
	if fits[true] == 0 || fits[false] == 0 {
		t.Errorf("got %v: the test does not see both outcomes", fits)
	}
}

// What would fit now is allocated on one of the nodes that are named, asked for as it is printed.
func TestAlternatives_AreAllocated(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	tried := 0
	for step := range 12 {
		b := newBed(t, "hgx-h100", "a100-pcie-nvlink-pairs")
		for i := range 6 + random.IntN(20) {
			r := []resourceapi.DeviceRequest{asks("mps.cleave.dev", 1, fmt.Sprintf("memory=%dMi", 1000+random.IntN(60000)), fmt.Sprintf("cores=%d", 1+random.IntN(60))),
				asks("timeslice.cleave.dev", 1, fmt.Sprintf("memory=%dMi", 1000+random.IntN(60000))), asks("gpu.cleave.dev", 1), asks("mig-3g.40gb.cleave.dev", 1)}[random.IntN(4)]
			node := b.Nodes[random.IntN(2)].Name
			c := claim(fmt.Sprint("c-", i), r)
			if results := b.try(node, c); results != nil {
				c.Status.Allocation = &results[0]
				b.Claims = append(b.Claims, c)
			}
		}
		for _, r := range []resourceapi.DeviceRequest{asks("gpu.cleave.dev", 30), asks("mps.cleave.dev", 1, "memory=500Gi"), asks("timeslice.cleave.dev", 1, "memory=500Gi"),
			asks("mig-1g.5gb.cleave.dev", 40), selecting(asks("mps.cleave.dev", 1), "false")} {
			for _, a := range b.explain(AboutClaim(claim("asked", r))).Alternatives {
				var amounts []string
				for _, c := range a.Capacity {
					amounts = append(amounts, strings.Replace(c, " ", "=", 1))
				}
				as := claim("as-printed", asks(a.Class, a.Count, amounts...))
				tried++
				if !slices.ContainsFunc(a.Nodes, func(node string) bool { return b.try(node, as) != nil }) {
					t.Errorf("step %d, in place of %s: %s is not allocated", step, r.Exactly.DeviceClassName, a)
				}
			}
		}
	}
	if tried < 100 {
		t.Errorf("only %d alternatives were tried", tried)
	}
}
