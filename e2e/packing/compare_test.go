// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
)

// Some minutes and more seeds give numbers to publish: go test ./e2e/packing -run Compare -v -seeds 20.
var (
	seeds     = flag.Int("seeds", 6, "traces for each mix and load")
	firstSeed = flag.Uint64("first-seed", 1, "the first of the seeds")
	requests  = flag.Int("requests", 1000, "requests of a trace")
)

// bound is what the comparison must stay below: 5 % fewer rejections.
const bound = 0.95

func TestCompare_Rejections(t *testing.T) {
	node, err := Inventory(t.Context(), "hgx-h100")
	must(t, err)
	checkRatio(t, node, Mixes)
}

func TestCompare_RejectionsWithShares(t *testing.T) {
	checkRatio(t, offeredNode(t, "hgx-h100"), SharedMixes)
}

func checkRatio(t *testing.T, node *policy.Node, mixes []Mix) {
	t.Helper()
	result, err := Compare(t.Context(), Options{
		Node: node, Mixes: mixes, Classes: manifestClasses(t), Seeds: *seeds, Requests: *requests, FirstSeed: *firstSeed,
	})
	must(t, err)
	if err := result.Print(t.Output()); err != nil {
		t.Error(err)
	}
	if ratio := result.Ratio(); ratio > bound {
		t.Errorf("Cleave's order rejects %.3f of what the peer's does, more than %.2f", ratio, bound)
	}
	for _, c := range result {
		if len(result) != len(mixes)*len(Loads) || c.Cleave.Requested == 0 || c.Cleave.Requested != c.Peer.Requested {
			t.Errorf("cell %+v of %d is no comparison", c, len(result))
		}
	}
}

func TestCompare_SameDevices(t *testing.T) {
	node := offeredNode(t, "hgx-h100")
	devices := func(order Order) (all []resourceapi.Device) {
		for _, s := range order(node) {
			all = append(all, s.Spec.Devices...)
		}
		slices.SortFunc(all, func(a, b resourceapi.Device) int { return strings.Compare(a.Name, b.Name) })
		return all
	}
	if diff := cmp.Diff(devices(Cleave), devices(Peer)); diff != "" {
		t.Errorf("-Cleave +peer:\n%s", diff)
	}
	first := Peer(node)[1].Spec.Devices
	if len(first) < 3 || first[0].Name != node.GPUs[0].PCI.DeviceName() || !strings.HasSuffix(first[1].Name, "-0") {
		t.Errorf("the peer's first slice starts with %v", first)
	}
}

func TestReplay_HiddenDevices(t *testing.T) {
	for _, mix := range []Mix{Mixes[1], SharedMixes[0]} {
		for name, order := range map[string]Order{"Cleave": Cleave, "the peer": Peer} {
			t.Run(mix.Name+" of "+name, func(t *testing.T) { checkDecisions(t, mix, order) })
		}
	}
}

func checkDecisions(t *testing.T, mix Mix, order Order) {
	t.Helper()
	inventory := offeredNode(t, "hgx-h100")
	var nodes [2]*Node
	for i := range nodes {
		n, err := NewNode(order(inventory), manifestClasses(t))
		must(t, err)
		nodes[i] = n
	}
	type pair struct{ all, some resourceapi.AllocationResult }
	var running []pair
	for i, r := range NewTrace(mix, 90, 8, 300, 1) {
		name := fmt.Sprintf("claim-%d", i)
		want, wantErr := nodes[0].Allocate(t.Context(), allocator.NewClaim(name, r.Kind.Class, 1))
		got, gotErr := nodes[1].AllocateFromClass(t.Context(), name, r.Kind.Class, 1)
		if errors.Is(wantErr, allocator.ErrNoFit) && errors.Is(gotErr, allocator.ErrNoFit) {
			at := i % len(running)
			nodes[0].Release(running[at].all)
			nodes[1].Release(running[at].some)
			running = slices.Delete(running, at, at+1)
			continue
		}
		if wantErr != nil || gotErr != nil {
			t.Fatalf("request %d: %v and %v", i, wantErr, gotErr)
		}
		// The allocator draws share IDs at random.
		if diff := cmp.Diff(want[0], got, cmpopts.IgnoreFields(resourceapi.DeviceRequestAllocationResult{}, "ShareID")); diff != "" {
			t.Fatalf("request %d (-all +some):\n%s", i, diff)
		}
		running = append(running, pair{want[0], got})
	}
}

func TestTrace_Deterministic(t *testing.T) {
	a, b := NewTrace(Mixes[0], 70, 8, 200, 7), NewTrace(Mixes[0], 70, 8, 200, 7)
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("two traces of the same seed differ:\n%s", diff)
	}
	if cmp.Equal(a, NewTrace(Mixes[0], 70, 8, 200, 8)) {
		t.Error("traces of two seeds are the same")
	}
	// What is asked for at any time is, on average, the load.
	long := NewTrace(Mixes[0], 70, 8, 50_000, 1)
	work := 0.0
	for _, r := range long {
		work += (r.Leave - r.Arrive) * float64(r.Kind.Slices)
	}
	if load := work / long[len(long)-1].Arrive / (8 * gpuSlices); load < 0.68 || load > 0.72 {
		t.Errorf("the trace asks for %.3f of the node, not for 0.70", load)
	}
}

func manifestClasses(t *testing.T) []*resourceapi.DeviceClass {
	t.Helper()
	all, err := Classes("../../deployments/manifests")
	must(t, err)
	return all
}
