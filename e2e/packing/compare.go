// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"sync"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// Options of a comparison.
type Options struct {
	// Node is what is packed.
	Node *policy.Node
	// Mixes are what is asked of it. Their classes must fit it.
	Mixes []Mix
	// Classes are the cluster's DeviceClasses.
	Classes []*resourceapi.DeviceClass
	// Seeds is the number of traces per cell, Requests the length of a trace.
	Seeds, Requests int
	// FirstSeed is the first of the consecutive seeds.
	FirstSeed uint64
	// Static also replays Cleave's order as it is on an empty node, without following what is free, and as it follows when
	// it learns of each allocation one allocation late.
	Static bool
}

// Cell is one mix at one load: what each order does with the same traces.
type Cell struct {
	Mix                        string
	Load                       int
	Cleave, Peer, Static, Late Tally
}

// Ratio is what Cleave's order rejects for each slice that the peer's order rejects.
func (c Cell) Ratio() float64 {
	// Where nothing was rejected, half a slice stands for it: a ratio of zero would outweigh everything.
	return max(float64(c.Cleave.Rejected), 0.5) / max(float64(c.Peer.Rejected), 0.5)
}

// Comparison has one cell for each mix and load.
type Comparison []Cell

// Ratio is the geometric mean of the cells' ratios: 0.9 means that Cleave's order rejects 10 % less.
func (c Comparison) Ratio() float64 {
	sum := 0.0
	for _, cell := range c {
		sum += math.Log(cell.Ratio())
	}
	return math.Exp(sum / float64(len(c)))
}

// Print writes a table.
func (c Comparison) Print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%-20s %5s  %8s %8s %8s  %6s\n", "MIX", "LOAD", "PEER", "STATIC", "CLEAVE", "RATIO")
	for _, cell := range c {
		static := "-"
		if cell.Static.Requested > 0 {
			static = fmt.Sprintf("%.2f%%", 100*cell.Static.Share())
		}
		_, cellErr := fmt.Fprintf(w, "%-20s %4d%%  %7.2f%% %8s %7.2f%%  %6.3f\n",
			cell.Mix, cell.Load, 100*cell.Peer.Share(), static, 100*cell.Cleave.Share(), cell.Ratio())
		err = errors.Join(err, cellErr)
	}
	_, lastErr := fmt.Fprintf(w, "compute slices rejected / requested; geometric mean of the ratios %.3f\n", c.Ratio())
	return errors.Join(err, lastErr)
}

// job is one trace in one order.
type job struct {
	order Order
	// follows means that the order follows what is free, late that it does so one allocation late.
	follows, late bool
	trace         []Request
	tally         Tally
	err           error
	// sum is where the tally is added up.
	sum *Tally
}

// Compare replays the same traces in all orders, on all processors, through the scheduler's allocator. The numbers
// follow from the options alone.
func Compare(ctx context.Context, o Options) (Comparison, error) {
	result := make(Comparison, 0, len(o.Mixes)*len(Loads)) // never moved: jobs point into it
	var jobs []*job
	for _, mix := range o.Mixes {
		for _, load := range Loads {
			result = append(result, Cell{Mix: mix.Name, Load: load})
			cell := &result[len(result)-1]
			for i := range o.Seeds {
				trace := NewTrace(mix, load, len(o.Node.GPUs), o.Requests, o.FirstSeed+uint64(i))
				jobs = append(jobs, &job{order: Cleave, follows: true, trace: trace, sum: &cell.Cleave},
					&job{order: Peer, trace: trace, sum: &cell.Peer})
				if o.Static {
					jobs = append(jobs, &job{order: Cleave, trace: trace, sum: &cell.Static},
						&job{order: Cleave, follows: true, late: true, trace: trace, sum: &cell.Late})
				}
			}
		}
	}
	runAll(ctx, o, jobs)
	for _, j := range jobs {
		if j.err != nil {
			return nil, j.err
		}
		*j.sum = j.sum.plus(j.tally)
	}
	return result, nil
}

// runAll fills in the jobs' tallies.
func runAll(ctx context.Context, o Options, jobs []*job) {
	queue := make(chan *job, len(jobs))
	for _, j := range jobs {
		queue <- j
	}
	close(queue)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for j := range queue {
				j.tally, j.err = runOne(ctx, o, j)
			}
		})
	}
	workers.Wait()
}

func runOne(ctx context.Context, o Options, j *job) (Tally, error) {
	node, err := NewNode(j.order(o.Node), o.Classes)
	if err != nil {
		return Tally{}, err
	}
	if j.follows {
		node.Follow(o.Node, j.late)
	}
	return Replay(ctx, node, o.Node, j.trace)
}
