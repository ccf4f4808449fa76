// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// fewest is what no scheduler can do better than: the fewest GPUs that hold some pods of a kind, and the fewest untouched GPUs
// that have to be opened for them. The two are of different choices where something is allocated: what is left of many GPUs
// opens none.
type fewest struct{ gpus, opened int }

// room is for how many pods a GPU has room, and on how many GPUs it is so.
type room struct {
	pods, gpus int
	untouched  bool
}

// fewestOf computes it for pods with one device of a class each, on nodes that publish the same. Of each node, the first so
// many of some devices are allocated; used has the number of nodes for each such number.
func fewestOf(ctx context.Context, published []*resourceapi.ResourceSlice, classes allocator.Classes, class string,
	devices []string, used map[int]int, pods int) (fewest, error) {
	rooms, err := roomsOf(ctx, published, classes, class, devices, used)
	if err != nil {
		return fewest{}, err
	}
	f := fewest{}
	slices.SortFunc(rooms, func(a, b room) int { return cmp.Compare(b.pods, a.pods) })
	if f.gpus, err = take(rooms, pods); err != nil {
		return fewest{}, fmt.Errorf("place %d pods of class %s: %w", pods, class, err)
	}
	touched := 0
	for _, r := range rooms {
		if !r.untouched {
			touched += r.pods * r.gpus
		}
	}
	rooms = slices.DeleteFunc(rooms, func(r room) bool { return !r.untouched })
	f.opened, err = take(rooms, max(0, pods-touched))
	return f, err
}

// take is how many GPUs are needed for pods, taken from rooms in their order.
func take(rooms []room, pods int) (gpus int, err error) {
	for _, r := range rooms {
		if pods <= 0 || r.pods == 0 {
			break
		}
		n := min(r.gpus, (pods+r.pods-1)/r.pods)
		gpus += n
		pods -= n * r.pods
	}
	if pods > 0 {
		return 0, fmt.Errorf("there is no room for %d of them", pods)
	}
	return gpus, nil
}

func roomsOf(ctx context.Context, published []*resourceapi.ResourceSlice, classes allocator.Classes, class string,
	devices []string, used map[int]int) ([]room, error) {
	c := pools.NewCache()
	node, err := c.Node(published)
	if err != nil {
		return nil, fmt.Errorf("read what a node publishes: %w", err)
	}
	spec := workload.ClaimSpec(class, 1)
	demand, err := pools.NewDemand(classes.Get, &spec)
	if err != nil {
		return nil, err
	}
	requests, err := c.Requests(ctx, node, demand)
	if err != nil {
		return nil, err
	}
	var rooms []room
	for n, nodes := range used {
		state := node.NewState()
		for _, name := range devices[:n] {
			at, ok := node.Device(published[0].Spec.Pool.Name, name)
			if !ok {
				return nil, fmt.Errorf("find device %s: the node does not publish it", name)
			}
			state.Allocate(packing.Use{Device: at})
		}
		for gpu := range node.Model.GPUs {
			rooms = append(rooms, room{roomOn(state, gpu, requests[0]), nodes, !state.Touched(gpu)})
		}
	}
	return rooms, nil
}

// roomOn is how many pods with a request fit on a GPU, in the order of the allocator.
func roomOn(state *packing.State, gpu int, r packing.Request) int {
	state = state.Clone()
	model := state.Model()
	own := packing.NewBits(len(model.Devices))
	for i := range model.Devices {
		if model.Devices[i].GPU == gpu && r.Match.Has(i) {
			own.Set(i)
		}
	}
	r.Match = own
	for n := 0; ; n++ {
		uses, fits, err := state.Fit(r)
		if err != nil || !fits {
			return n
		}
		state.Allocate(uses...)
	}
}
