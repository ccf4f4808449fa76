// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
)

// Tally counts compute slices that were requested and rejected, and requests for several GPUs that were served, and from
// one NVLink group or NUMA node.
type Tally struct {
	Requested, Rejected int
	Several, Together   int
}

// Share is the part of what was requested that was rejected.
func (t Tally) Share() float64 {
	if t.Requested == 0 {
		return 0
	}
	return float64(t.Rejected) / float64(t.Requested)
}

func (t Tally) plus(u Tally) Tally {
	return Tally{t.Requested + u.Requested, t.Rejected + u.Rejected, t.Several + u.Several, t.Together + u.Together}
}

// allocation is a claim's devices and when it ends.
type allocation struct {
	until  float64
	result resourceapi.AllocationResult
}

// Replay runs a trace on the node of an inventory, which starts empty. A request that does not fit is dropped, not tried
// again.
func Replay(ctx context.Context, node *Node, inventory *policy.Node, trace []Request) (Tally, error) {
	var tally Tally
	var running []allocation // by the time they end
	for i, r := range trace {
		for len(running) > 0 && running[0].until <= r.Arrive {
			node.Release(running[0].result)
			running = running[1:]
		}
		tally.Requested += r.Kind.Slices
		result, err := node.AllocateFromClass(ctx, fmt.Sprintf("claim-%d", i), r.Kind.Class, max(1, r.Kind.Count))
		if errors.Is(err, allocator.ErrNoFit) {
			tally.Rejected += r.Kind.Slices
			continue
		}
		if err != nil {
			return tally, fmt.Errorf("replay request %d: %w", i, err)
		}
		if r.Kind.Count > 1 {
			tally.Several++
			if together(inventory, devicesOf(result)) {
				tally.Together++
			}
		}
		at, _ := slices.BinarySearchFunc(running, r.Leave, func(h allocation, t float64) int { return cmp.Compare(h.until, t) })
		running = slices.Insert(running, at, allocation{r.Leave, result})
	}
	return tally, nil
}

// devicesOf are the names of what was allocated.
func devicesOf(result resourceapi.AllocationResult) []string {
	var names []string
	for _, d := range result.Devices.Results {
		names = append(names, d.Device)
	}
	return names
}
