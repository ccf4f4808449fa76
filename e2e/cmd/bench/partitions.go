// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// smallest is the profile ID of the smallest partitions of an H100.
const smallest = 19

// Goals for the number of NVML calls. Of those of Prepare, three look whether the GPU can be used at all: its temperature, which
// no driver answers from memory, its minor number, which names its device node, and its compute mode.
const (
	prepareCalls   = 11
	unprepareCalls = 6
)

// sortDevices keeps the whole GPUs and the smallest partitions that the node publishes.
func (b *bench) sortDevices(list *resourceapi.ResourceSliceList) error {
	for _, s := range list.Items {
		for _, d := range s.Spec.Devices {
			if kind := d.Attributes["type"].StringValue; kind != nil && *kind == "gpu" {
				b.devices = append(b.devices, d.Name)
			}
		}
	}
	slices.Sort(b.devices)
	b.partitions = smallestPartitions(list)
	if len(b.devices) != 8 || len(b.partitions) != 8 {
		return fmt.Errorf("the node publishes %d GPUs and partitions of %d, not of 8", len(b.devices), len(b.partitions))
	}
	return nil
}

// smallestPartitions are the devices of the smallest profile, by GPU, in the order of their names.
func smallestPartitions(list *resourceapi.ResourceSliceList) (all [][]string) {
	byGPU := map[string][]string{}
	for _, s := range list.Items {
		for _, d := range s.Spec.Devices {
			if id, _, ok := gpu.ParsePartitionName(d.Name); ok && id == smallest {
				parent, _, _ := strings.Cut(d.Name, "-mig-")
				byGPU[parent] = append(byGPU[parent], d.Name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byGPU)) {
		all = append(all, byGPU[name])
	}
	return all
}

// partitionBench measures partitions.
type partitionBench struct{ *bench }

// measure measures claims for MIG partitions, whose NVML calls cost nothing on a simulated node.
func (b partitionBench) measure(ctx context.Context, r *report, floor time.Duration) error {
	var first, all []*drapb.Claim // the first partition of each GPU; all of all
	for g, names := range b.partitions {
		for i, name := range names {
			claim, err := b.makeClaim(ctx, fmt.Sprintf("partition-%d-%d", g, i), name, false)
			if err != nil {
				return err
			}
			all = append(all, claim)
			if i == 0 {
				first = append(first, claim)
			}
		}
	}
	one, err := b.singles(ctx, first)
	if err != nil {
		return err
	}
	p50 := one.prepare.percentile(50)
	r.add(result{Name: "partition: prepare p50", Value: millis(p50), Limit: 2.5 * millis(floor), Unit: "ms", Rule: "2.5 x floor p50"})
	r.add(result{Name: "partition: prepare p99", Value: millis(one.prepare.percentile(99)), Unit: "ms"})
	r.add(result{Name: "partition: unprepare p50", Value: millis(one.unprepare.percentile(50)), Unit: "ms"})
	eight, err := b.allPrepared(ctx, first, b.rounds)
	if err != nil {
		return err
	}
	r.add(result{Name: "8 partitions on 8 GPUs at once: all prepared p50", Value: millis(eight.percentile(50)), Unit: "ms"})
	if err := b.measureSlow(ctx, r, first); err != nil {
		return err
	}
	if err := b.measureAll(ctx, r, all); err != nil {
		return err
	}
	return b.measureCalls(ctx, r, first[0])
}

// Calls that take a board some time: whoever makes GPUs wait for each other pays it eight times. With calls that cost
// nothing, eight claims take as long as the machine has too few cores for eight claims and their API server.
const (
	slowRounds = 10
	slowCall   = 100 * time.Millisecond
)

var slowCalls = []string{"nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"}

// measureSlow measures one partition, and one on each of eight GPUs at once, on boards that take their time.
func (b partitionBench) measureSlow(ctx context.Context, r *report, first []*drapb.Claim) error {
	for _, call := range slowCalls {
		if _, err := b.node.Sim(ctx, "fault", "--slow", slowCall.String(), call); err != nil {
			return err
		}
	}
	one, err := b.allPrepared(ctx, first[:1], slowRounds)
	if err != nil {
		return err
	}
	eight, err := b.allPrepared(ctx, first, slowRounds)
	if err != nil {
		return err
	}
	r.add(result{Name: "one partition, NVML takes 200 ms: p50", Value: millis(one.percentile(50)), Unit: "ms"})
	r.add(result{Name: "8 partitions on 8 GPUs at once, each 200 ms: p50", Value: millis(eight.percentile(50)),
		Limit: 2 * millis(one.percentile(50)), Unit: "ms", Rule: "2 x one"})
	_, err = b.node.Sim(ctx, "fault", "--clear")
	return err
}

// allPrepared measures how long it takes until claims that are prepared at once are all prepared.
func (b partitionBench) allPrepared(ctx context.Context, claims []*drapb.Claim, rounds int) (samples, error) {
	var took samples
	for range rounds {
		start := time.Now()
		if _, err := b.each(ctx, claims, prepare); err != nil {
			return nil, err
		}
		took = append(took, time.Since(start))
		if _, err := b.each(ctx, claims, unprepare); err != nil {
			return nil, err
		}
	}
	return took, nil
}

// measureAll fills all GPUs with the smallest partitions and empties them again.
func (b partitionBench) measureAll(ctx context.Context, r *report, claims []*drapb.Claim) error {
	for _, step := range []struct {
		done string
		run  operation
	}{{"created", prepare}, {"destroyed", unprepare}} {
		start := time.Now()
		if _, err := b.each(ctx, claims, step.run); err != nil {
			return err
		}
		r.add(result{Name: fmt.Sprintf("%d partitions at once: all %s", len(claims), step.done), Value: millis(time.Since(start)), Unit: "ms"})
	}
	return nil
}

// measureCalls counts the NVML calls of one claim, which the simulated library writes down.
func (b partitionBench) measureCalls(ctx context.Context, r *report, claim *drapb.Claim) error {
	for _, step := range []struct {
		name  string
		limit float64
		run   operation
	}{{"partition: NVML calls of prepare", prepareCalls, prepare}, {"partition: NVML calls of unprepare", unprepareCalls, unprepare}} {
		before, err := b.calls()
		if err != nil {
			return err
		}
		if err := step.run(ctx, b.plugin, claim); err != nil {
			return err
		}
		after, err := b.calls()
		if err != nil {
			return err
		}
		r.add(result{Name: step.name, Value: float64(after - before), Limit: step.limit, Unit: "calls"})
	}
	return nil
}

// calls is how many NVML calls the plugin has made, waits for events aside.
func (b partitionBench) calls() (int, error) {
	data, err := os.ReadFile(b.trace)
	if err != nil {
		return 0, fmt.Errorf("count NVML calls: %w", err)
	}
	n := 0
	for line := range strings.Lines(string(data)) {
		if !strings.Contains(line, "nvmlEventSetWait") {
			n++
		}
	}
	return n, nil
}
