package packing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
)

// Tally counts compute slices.
type Tally struct {
	Requested, Rejected int
}

// Share is the part of what was requested that was rejected.
func (t Tally) Share() float64 {
	if t.Requested == 0 {
		return 0
	}
	return float64(t.Rejected) / float64(t.Requested)
}

func (t Tally) plus(u Tally) Tally {
	return Tally{t.Requested + u.Requested, t.Rejected + u.Rejected}
}

// held is an allocation and when it ends.
type held struct {
	until  float64
	result resourceapi.AllocationResult
}

// Replay runs a trace on a node that starts empty. A request that does not fit is dropped, not tried again.
func Replay(ctx context.Context, node *Node, trace []Request) (Tally, error) {
	var tally Tally
	var running []held // by the time they end
	for i, r := range trace {
		for len(running) > 0 && running[0].until <= r.Arrive {
			node.Release(running[0].result)
			running = running[1:]
		}
		tally.Requested += r.Kind.Slices
		result, err := node.AllocateOne(ctx, fmt.Sprintf("claim-%d", i), r.Kind.Class)
		if errors.Is(err, ErrNoFit) {
			tally.Rejected += r.Kind.Slices
			continue
		}
		if err != nil {
			return tally, fmt.Errorf("replay request %d: %w", i, err)
		}
		at, _ := slices.BinarySearchFunc(running, r.Leave, func(h held, t float64) int { return cmp.Compare(h.until, t) })
		running = slices.Insert(running, at, held{r.Leave, result})
	}
	return tally, nil
}
