// SPDX-License-Identifier: Apache-2.0

package repack

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/tools/allocator"
)

// shapesOf are classes for pods on a model.
var shapesOf = map[string][]string{
	"hgx-h100": {"mig-1g.10gb.cleave.dev", "mig-2g.20gb.cleave.dev", "mig-3g.40gb.cleave.dev", "timeslice.cleave.dev", "mps.cleave.dev", "gpu.cleave.dev"},
	"a30":      {"mig-1g.6gb.cleave.dev", "mig-2g.12gb.cleave.dev", "timeslice.cleave.dev"},
}

// randomBed is a cluster on which pods came and went.
func randomBed(t testing.TB, model string, nodes, pods int, random *rand.Rand) *bed {
	t.Helper()
	b := newBed(t, model, nodeNames(nodes)...)
	shapes := shapesOf[model]
	for i := range 4 * pods {
		if len(b.pods) > 0 && (random.IntN(3) == 0 || len(b.pods) > 2*pods) {
			b.end(random.IntN(len(b.pods)))
			continue
		}
		count := int64(1)
		if random.IntN(8) == 0 {
			count = 2
		}
		b.pod(fmt.Sprintf("pod-%04d", i), nodeNames(nodes)[random.IntN(nodes)], shapes[random.IntN(len(shapes))], count)
	}
	for len(b.pods) > pods {
		b.end(random.IntN(len(b.pods)))
	}
	return b
}

// whole counts the GPUs of which nothing is allocated.
func (b *bed) whole() int {
	touched := map[string]bool{}
	for _, c := range b.o.Claims {
		for _, r := range c.Status.Allocation.Devices.Results {
			touched[b.gpuOf[r.Pool+"/"+r.Device]] = true
		}
	}
	return b.gpus - len(touched)
}

// TestAdvise_Replayed restarts the pods with the scheduler's own allocator, on any of the best nodes: these and the devices are
// those of the advice, and each step frees what it says.
func TestAdvise_Replayed(t *testing.T) {
	steps, shared := 0, 0
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 1))
		b := randomBed(t, "hgx-h100", 4, 12+random.IntN(20), random)
		a := b.advise()
		if got := b.whole(); got != a.WholeNow {
			t.Fatalf("seed %d: %d GPUs are whole, the advice says %d", seed, got, a.WholeNow)
		}
		s, _ := b.cluster().load()
		for _, step := range a.Steps {
			before := b.whole()
			for _, m := range step.Pods {
				to, _ := b.choose(s, m, step.Cordon != "", random)
				b.restart(m, to)
				if strings.Contains(strings.Join(m.From.Devices, " "), "-timeslice") || strings.Contains(strings.Join(m.From.Devices, " "), "-mps") {
					shared++
				}
			}
			if got := b.whole() - before; got != len(step.Frees) || got < 1 {
				t.Fatalf("seed %d: a step of %d pods frees %d GPUs, the advice says %d", seed, len(step.Pods), got, len(step.Frees))
			}
			steps++
		}
		if got := b.whole(); got != a.WholeThen {
			t.Fatalf("seed %d: %d GPUs are whole after all restarts, the advice says %d", seed, got, a.WholeThen)
		}
	}
	if steps < 40 || shared < 5 {
		t.Errorf("only %d steps and %d restarts of shares were replayed", steps, shared)
	}
	t.Logf("%d steps, %d restarts of shares", steps, shared)
}

// restart replaces a pod, as the scheduler's allocator does once the old pod gave its devices back.
func (b *bed) restart(m Move, place Place) {
	b.Helper()
	claim := b.claim(m.Pod)
	if diff := cmp.Diff(devicesOf(claim.Status.Allocation), m.From.Devices); diff != "" {
		b.Fatalf("%s has other devices (-claim +advice):\n%s", m.Pod, diff)
	}
	from, to := b.nodes[m.From.Node], b.nodes[place.Node]
	allocate := func() resourceapi.AllocationResult {
		fresh := allocator.NewClaim(m.Pod+"-again", "", 1)
		fresh.Spec = claim.Spec
		results, err := to.Allocate(b.Context(), fresh)
		if err != nil {
			b.Fatalf("%s does not fit on %s: %v", m.Pod, place.Node, err)
		}
		return results[0]
	}
	if len(m.Or) == 0 && len(m.To.Devices) > 0 { // the place is the same while the old pod has its devices
		early := allocate()
		if diff := cmp.Diff(m.To.Devices, devicesOf(&early)); diff != "" {
			b.Fatalf("%s gets other devices early (-advice +allocator):\n%s", m.Pod, diff)
		}
		to.Release(early)
	}
	from.Release(*claim.Status.Allocation)
	result := allocate()
	if diff := cmp.Diff(place.Devices, devicesOf(&result)); diff != "" {
		b.Fatalf("%s gets other devices (-replay +allocator):\n%s", m.Pod, diff)
	}
	claim.Status.Allocation = &result
}

// TestAdvise_AnyOrderOfObjects: the advice does not depend on the order in which the cluster is read.
func TestAdvise_AnyOrderOfObjects(t *testing.T) {
	for seed := range uint64(5) {
		random := rand.New(rand.NewPCG(seed, 2))
		b := randomBed(t, "hgx-h100", 4, 24, random)
		first, err := json.Marshal(b.advise())
		if err != nil {
			t.Fatal(err)
		}
		random.Shuffle(len(b.pods), func(i, j int) { b.pods[i], b.pods[j] = b.pods[j], b.pods[i] })
		random.Shuffle(len(b.o.Claims), func(i, j int) { b.o.Claims[i], b.o.Claims[j] = b.o.Claims[j], b.o.Claims[i] })
		random.Shuffle(len(b.slices), func(i, j int) { b.slices[i], b.slices[j] = b.slices[j], b.slices[i] })
		random.Shuffle(len(b.o.Nodes), func(i, j int) { b.o.Nodes[i], b.o.Nodes[j] = b.o.Nodes[j], b.o.Nodes[i] })
		again, err := json.Marshal(b.advise())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(first), string(again)); diff != "" {
			t.Errorf("seed %d (-first +shuffled):\n%s", seed, diff)
		}
	}
}

// best is what restarts of any pods in any order gain at most, and the fewest pods for it.
func best(ctx context.Context, t *testing.T, s *search, left []*pod) (gain, pods int) {
	t.Helper()
	begin, whole := s.mark(), s.whole
	for i, p := range left {
		if p.on.unsure {
			continue
		}
		for _, cordon := range []bool{false, true} {
			opens := func(at spot) bool { return at.node.spends(at.uses, nil) }
			if to := s.predict(ctx, p, cordon); len(to) == 1 || len(to) > 1 && !slices.ContainsFunc(to, opens) {
				s.replace(p, to)
				g, n := best(ctx, t, s, slices.Concat(left[:i], left[i+1:]))
				g, n = g+s.whole-whole, n+1
				if g > gain || g == gain && g > 0 && n < pods {
					gain, pods = g, n
				}
			}
			s.undo(begin)
		}
	}
	return gain, pods
}

// TestAdvise_NearExhaustive compares the advice with the best of all restarts in all orders.
func TestAdvise_NearExhaustive(t *testing.T) {
	advised, possible, equal, clusters, fewest, more := 0, 0, 0, 0, 0, 0
	for seed := range uint64(120) {
		random := rand.New(rand.NewPCG(seed, 3))
		b := randomBed(t, "a30", 3, 3+random.IntN(3), random)
		a := b.advise()
		c := b.cluster()
		s, _ := c.load()
		var movable []*pod
		for _, g := range s.gpus {
			for _, p := range g.pods {
				if !slices.Contains(movable, p) {
					movable = append(movable, p)
				}
			}
		}
		gain, pods := best(t.Context(), t, s, movable)
		if s.whole != a.WholeNow || len(s.journal) != 0 {
			t.Fatalf("seed %d: the search left its traces", seed)
		}
		got := a.WholeThen - a.WholeNow
		if got > gain {
			t.Fatalf("seed %d: the advice gains %d GPUs, no order of restarts more than %d", seed, got, gain)
		}
		advised, possible = advised+got, possible+gain
		if gain > 0 {
			clusters++
			restarts := 0
			for _, step := range a.Steps {
				restarts += len(step.Pods)
			}
			if got == gain {
				equal++
				fewest, more = fewest+pods, more+restarts-pods
			}
		}
	}
	t.Logf("%d of %d clusters as exhaustive search, %d of %d GPUs, %d restarts more than %d", equal, clusters, advised, possible, more, fewest)
	if clusters < 20 || advised*10 < possible*9 {
		t.Errorf("%d of %d GPUs are freed, in %d clusters", advised, possible, clusters)
	}
	// GPUs are emptied one by one, the one with the fewest pods first, and not in the best combination: rarely, that costs a pod.
	if more*20 > fewest {
		t.Errorf("%d pods are restarted more than the fewest, which are %d", more, fewest)
	}
}
