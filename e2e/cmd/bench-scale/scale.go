// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cleave-dra/cleave/e2e/packing"
	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// scale measures memory, and the placement and rate of pods of one kind at a time.
func (b *bench) scale(ctx context.Context, r *report) error {
	before, err := apiServerMB(ctx, b.cluster)
	if err != nil {
		return err
	}
	heapBefore, err := apiServerHeapMB(ctx, b.client)
	if err != nil {
		return err
	}
	if err := b.addNodes(ctx, b.nodes); err != nil {
		return err
	}
	published, err := apiServerMB(ctx, b.cluster)
	if err != nil {
		return err
	}
	r.set(apiServerPublished, "", (published-before)/float64(b.nodes))
	heap, err := apiServerHeapMB(ctx, b.client)
	if err != nil {
		return err
	}
	r.set(apiServerHeap, "", (heap-heapBefore)/float64(b.nodes))
	for _, name := range b.schedulers {
		if err := b.with(ctx, name, func(s *scheduler) error { return b.onEmpty(ctx, r, s) }); err != nil {
			return err
		}
		if name == b.schedulers[0] {
			after, err := apiServerMB(ctx, b.cluster)
			if err != nil {
				return err
			}
			r.set(apiServerMemory, "", (after-before)/float64(b.nodes))
		}
	}
	if b.allocated == 0 {
		return nil
	}
	if err := b.fill(ctx); err != nil {
		return err
	}
	for _, name := range b.schedulers {
		if err := b.with(ctx, name, func(s *scheduler) error { return b.onLoaded(ctx, r, s) }); err != nil {
			return err
		}
	}
	return b.commands(ctx, r)
}

// with runs a measurement with a scheduler that has just started.
func (b *bench) with(ctx context.Context, name string, measure func(*scheduler) error) error {
	s, err := b.start(ctx, name)
	if err != nil {
		return err
	}
	err = measure(s)
	if err != nil {
		err = fmt.Errorf("%w\nthe log of %s ends with:\n%s", err, name, s.program.LogTail(10))
	}
	return errors.Join(err, s.stop())
}

// onEmpty measures on nodes of which nothing is allocated.
func (b *bench) onEmpty(ctx context.Context, r *report, s *scheduler) error {
	idle, err := process.Memory(s.program.PID(), "VmRSS")
	if err != nil {
		return err
	}
	r.set(schedulerMemoryIdle, s.name, idle/float64(b.nodes))
	for _, k := range b.kinds {
		if k.class != whole && b.landing > 0 {
			landed, _, _, err := b.place(ctx, s, k, b.landing)
			if err != nil {
				return err
			}
			least, err := b.fewest(ctx, k, b.landing, 0)
			if err != nil {
				return err
			}
			r.set(fmt.Sprintf(landedGPUs, b.landing, k.name), s.name, float64(landed.gpus))
			r.set(fmt.Sprintf(fewestGPUs, b.landing, k.name), "", float64(least.gpus))
			r.set(fmt.Sprintf(landedNodes, b.landing, k.name), s.name, float64(landed.nodes))
		}
		_, rate, used, err := b.place(ctx, s, k, b.pods)
		if err != nil {
			return err
		}
		r.set(fmt.Sprintf(podRate, b.pods, k.name), s.name, rate)
		r.set(fmt.Sprintf(podProcessor, k.name), s.name, used)
	}
	busy, err := process.Memory(s.program.PID(), "VmRSS")
	r.set(schedulerMemory, s.name, busy/float64(b.nodes))
	return err
}

// onLoaded measures with claims that are allocated already.
func (b *bench) onLoaded(ctx context.Context, r *report, s *scheduler) error {
	for _, k := range b.kinds {
		landed, rate, used, err := b.place(ctx, s, k, b.pods)
		if err != nil {
			return err
		}
		least, err := b.fewest(ctx, k, b.pods, b.allocated)
		if err != nil {
			return err
		}
		r.set(fmt.Sprintf(podRateLoaded, b.pods, k.name, b.allocated), s.name, rate)
		r.set(fmt.Sprintf(podProcessorLoaded, k.name, b.allocated), s.name, used)
		r.set(fmt.Sprintf(openedGPUs, b.pods, k.name, b.allocated), s.name, float64(landed.opened))
		r.set(fmt.Sprintf(fewestOpened, b.pods, k.name, b.allocated), "", float64(least.opened))
	}
	return nil
}

// place creates pods of a kind at once, and removes them when all are bound. It returns where they landed, how many were
// bound in a second, and how many milliseconds of a processor the scheduler used for each. The API server collects its garbage
// before: a collection goes through gigabytes, for seconds on the processors that all share, and would come upon one scheduler
// and not upon the other.
func (b *bench) place(ctx context.Context, s *scheduler, k kind, n int) (l landing, rate, used float64, err error) {
	names := b.names(k.prefix(), n)
	if _, err := apiServerHeapMB(ctx, b.client); err != nil {
		return l, 0, 0, err
	}
	before, err := process.ProcessorTime(s.program.PID())
	if err != nil {
		return l, 0, 0, err
	}
	began, err := b.create(ctx, s.name, k.class, 1, names)
	if err != nil {
		return l, 0, 0, err
	}
	last, err := b.bound(ctx, names)
	if err != nil {
		return l, 0, 0, err
	}
	after, err := process.ProcessorTime(s.program.PID())
	if err != nil {
		return l, 0, 0, err
	}
	rate = float64(n) / last.Sub(began).Seconds()
	used = float64((after - before).Milliseconds()) / float64(n)
	if l, err = b.landed(ctx, names); err != nil {
		return l, 0, 0, err
	}
	if err := b.allocatedOnce(ctx, names); err != nil {
		return l, 0, 0, err
	}
	fmt.Fprintf(os.Stderr, "%s: %d pods of %s on %d GPUs of %d nodes, %d of them untouched before, %.1f in a second, "+
		"%.1f ms of a processor each\n", s.name, n, k.name, l.gpus, l.nodes, l.opened, rate, used)
	return l, rate, used, b.remove(ctx, names)
}

// fill allocates claims, as many to each node, in the order in which the allocator takes devices of an empty node: the
// smallest partitions of the first GPUs. No pods use them. With 10 a node, one GPU of each is full and one has room for four
// more: that is where pods of the smallest partitions go first, on as many nodes as it takes.
func (b *bench) fill(ctx context.Context) error {
	devices := b.published.smallest()
	if each := (b.allocated + b.nodes - 1) / b.nodes; each > len(devices) {
		return fmt.Errorf("allocate %d claims on %d nodes: a node has %d devices of profile %s", b.allocated, b.nodes, len(devices), smallest)
	}
	fmt.Fprintf(os.Stderr, "allocating %d claims\n", b.allocated)
	for i := range b.allocated {
		b.touched[nodeName(i%b.nodes)+"/"+packing.GPUOf(devices[i/b.nodes])] = true
	}
	client := workload.Client{Kube: b.client}
	return inParallel(ctx, b.allocated, func(ctx context.Context, i int) error {
		_, err := client.Allocate(ctx, namespace, fmt.Sprintf("allocated-%06d", i),
			workload.OneGPU(nodeName(i%b.nodes), devices[i/b.nodes], false))
		return err
	})
}

// fewest is what the best scheduler does with pods of a kind when so many claims are allocated by fill.
func (b *bench) fewest(ctx context.Context, k kind, pods, allocated int) (fewest, error) {
	each, more := allocated/b.nodes, allocated%b.nodes
	used := map[int]int{each: b.nodes - more}
	if more > 0 {
		used[each+1] = more
	}
	return fewestOf(ctx, b.published, b.classes, k.class, b.published.smallest(), used, pods)
}
