// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// usageBench measures what it costs that the plugin looks at what claims use (--usage-every). There is a node for each interval, with as
// many partitions as there can be, all prepared; one of each GPU is measured, and the others have a process each that keeps them busy. All
// plugins run at once and are asked in turn, so that each sees the same machine. What a look costs in CPU time, all see, too: so that is
// measured besides, while nothing is asked.
type usageBench struct {
	*bench
	nodes []*usageNode
}

// usages are how often plugins look.
var usages = []struct{ every, name string }{{"0s", "no looks at usage"}, {"15s", "a look every 15 s"}, {"1s", "a look every second"}}

const (
	// usageSettles is how long plugins are left alone: each has looked at least twice by then.
	usageSettles = 20 * time.Second
	// usageIdle is how long memory and CPU time are measured, usageEvery how often; then claims are, for usageTime.
	usageIdle, usageEvery, usageTime = 30 * time.Second, 250 * time.Millisecond, time.Minute
	// What looks at the default interval may cost: the time of Prepare, and memory in MB.
	usageTimes, usageMemory = 1.05, 4
)

// usageNode is a node whose plugin looks so often.
type usageNode struct {
	podClaims
	every, name string
	// bin is the directory of the programs.
	bin        string
	node       *node.Node
	plugin     *workload.Plugin
	partitions [][]string
	// measured are the indexes of the claims that are measured.
	measured []int
	busy     []*exec.Cmd

	prepared samples
	memory   []float64 // MB
	cpu      float64   // milliseconds of CPU time in a second
}

func (b *usageBench) measure(ctx context.Context, r *report) (err error) {
	defer func() { err = errors.Join(err, b.clear()) }()
	for i, u := range usages {
		n := &usageNode{podClaims: podClaims{bench: b.bench, pool: fmt.Sprintf("bench-usage-%d", i)}, every: u.every, name: u.name,
			bin: filepath.Join(b.source, "bin")}
		b.nodes = append(b.nodes, n)
		if err := n.start(ctx, 8*(i+1)); err != nil {
			return fmt.Errorf("%s: %w", u.name, err)
		}
		if err := n.fill(ctx); err != nil {
			return fmt.Errorf("%s: %w", u.name, err)
		}
	}
	for _, step := range []func(context.Context) error{b.measureIdle, b.measureClaims} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	without := b.nodes[0]
	for i, n := range b.nodes {
		name := fmt.Sprintf("%d partitions, %d busy, %s: ", len(n.claims), len(n.busy), n.name)
		p50 := result{Name: name + "prepare p50", Value: millis(n.prepared.percentile(50)), Unit: "ms"}
		memory := result{Name: name + "anonymous memory", Value: median(n.memory), Unit: "MB"}
		if i == 1 {
			p50.Limit, p50.Rule = usageTimes*millis(without.prepared.percentile(50)), "1.05 x without, in turn"
			memory.Limit, memory.Rule = median(without.memory)+usageMemory, "4 MB more than without"
		}
		r.add(p50)
		r.add(result{Name: name + "prepare p99", Value: millis(n.prepared.percentile(99)), Unit: "ms"})
		r.add(memory)
		r.add(result{Name: name + "CPU time in a second, idle", Value: n.cpu, Unit: "ms"})
	}
	return nil
}

// median of numbers.
func median(of []float64) float64 { return slices.Sorted(slices.Values(of))[len(of)/2] }

// measureIdle measures memory and CPU time of plugins that are not asked for anything.
func (b *usageBench) measureIdle(ctx context.Context) error {
	if err := pause(ctx, usageSettles); err != nil {
		return err
	}
	before := make([]time.Duration, len(b.nodes))
	for _, n := range b.nodes {
		if err := n.checkFigures(ctx); err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
	}
	began := time.Now()
	for i, n := range b.nodes {
		var err error
		if before[i], err = process.ProcessorTime(n.node.PID()); err != nil {
			return err
		}
	}
	for time.Since(began) < usageIdle {
		for _, n := range b.nodes {
			memory, err := process.Memory(n.node.PID(), "RssAnon")
			if err != nil {
				return err
			}
			n.memory = append(n.memory, memory)
		}
		if err := pause(ctx, usageEvery); err != nil {
			return err
		}
	}
	for i, n := range b.nodes {
		used, err := process.ProcessorTime(n.node.PID())
		if err != nil {
			return err
		}
		n.cpu = millis(used-before[i]) / time.Since(began).Seconds()
	}
	return nil
}

// measureClaims asks the plugins in turn, each round one that another began with.
func (b *usageBench) measureClaims(ctx context.Context) error {
	began := time.Now()
	for round := 0; time.Since(began) < usageTime; round++ {
		for i := range b.nodes {
			n := b.nodes[(round+i)%len(b.nodes)]
			claim := n.claims[n.measured[round%len(n.measured)]]
			if err := unprepare(ctx, n.plugin, claim); err != nil {
				return err
			}
			if err := timed(&n.prepared, func() error { return prepare(ctx, n.plugin, claim) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// clear ends the nodes.
func (b *usageBench) clear() error {
	var errs []error
	for _, n := range slices.Backward(b.nodes) { // the first has made what the cgroups of all are in
		if n.plugin != nil {
			errs = append(errs, n.plugin.Close())
		}
		if n.node != nil && n.node.Running() {
			errs = append(errs, n.node.Kill())
		}
		for _, cmd := range n.busy {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		errs = append(errs, n.removeGroups())
	}
	return errors.Join(errs...)
}

// start starts the plugin of a node, whose GPUs have device nodes from a minor number on, and waits until it is published.
func (n *usageNode) start(ctx context.Context, minor int) error {
	dir, err := n.cluster.GuestDir(n.pool)
	if err != nil {
		return err
	}
	n.node, n.plugin, err = n.startNode(ctx, nil,
		node.Options{Bin: n.bin, NodeName: n.pool, Dir: dir, Flags: []string{"--usage-every", n.every}},
		[]string{"create", "--node", "hgx-h100", "--seed", n.pool, "--first-minor", strconv.Itoa(minor)})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return workload.Until(ctx, "the slices of "+n.pool, func(ctx context.Context) (bool, string, error) {
		list, err := n.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.pool})
		if err != nil {
			return false, "", err
		}
		n.partitions = smallestPartitions(list)
		return len(n.partitions) == 8 && int64(len(list.Items)) == list.Items[0].Spec.Pool.ResourceSliceCount,
			fmt.Sprintf("%d slices", len(list.Items)), nil
	})
}

// fill prepares the claims, and has processes use the devices of all that are not measured.
func (n *usageNode) fill(ctx context.Context) error {
	place := map[string]int{} // by GPU and start, as the simulator lists partitions
	for g, names := range n.partitions {
		for i, name := range names {
			if err := n.make(ctx, fmt.Sprintf("%s-%d-%d", n.pool, g, i), name); err != nil {
				return err
			}
			at := len(n.claims) - 1
			if i == 0 {
				n.measured = append(n.measured, at)
				continue
			}
			_, start, _ := gpu.ParsePartitionName(name)
			place[fmt.Sprintf("%d %d", g, start)] = at
		}
	}
	for _, claim := range n.claims {
		if err := prepare(ctx, n.plugin, claim); err != nil {
			return err
		}
	}
	partitions, err := n.node.Partitions(ctx)
	if err != nil {
		return err
	}
	for _, p := range partitions {
		start, _, _ := strings.Cut(p.Placement, ":")
		at, ok := place[p.GPU+" "+start]
		if !ok {
			continue
		}
		if err := n.keepBusy(ctx, at, "--gpu", p.GPU, "--gi", p.GPUInstance, "--ci", p.ComputeInstance); err != nil {
			return err
		}
	}
	if len(n.busy) != len(place) || len(n.claims) != len(place)+len(n.measured) {
		return fmt.Errorf("%d of %d partitions are busy", len(n.busy), len(place))
	}
	return nil
}

// keepBusy starts a process of a claim's pod that uses a device.
func (n *usageNode) keepBusy(ctx context.Context, claim int, device ...string) error {
	cmd := exec.CommandContext(ctx, "sleep", "3600")
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a process: %w", err)
	}
	n.busy = append(n.busy, cmd)
	pid := strconv.Itoa(cmd.Process.Pid)
	for _, group := range n.of[claim] {
		err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(pid), 0)
		if err != nil && !errors.Is(err, syscall.ENOSPC) { // of cpuset, before anybody gives it processors
			return fmt.Errorf("move a process into the cgroup of a pod: %w", err)
		}
	}
	_, err := n.node.Sim(ctx, append([]string{"load", "--sm", "40", "--dram", "20", "--memory", "2Gi", "--pid", pid}, device...)...)
	return err
}

// checkFigures checks that the plugin has figures of the claims that are in use, or that it does not look.
func (n *usageNode) checkFigures(ctx context.Context) error {
	all, err := n.node.Metrics(ctx)
	if err != nil {
		return err
	}
	active := 0
	for name, value := range all {
		if v, err := strconv.ParseFloat(value, 64); err == nil && v > 0.3 && strings.HasPrefix(name, "cleave_claim_sm_active_ratio{") {
			active++
		}
	}
	want := len(n.busy)
	if n.every == usages[0].every {
		want = 0
	}
	if active != want {
		return fmt.Errorf("the plugin has figures of %d busy claims, not of %d", active, want)
	}
	return nil
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return fmt.Errorf("wait: %w", ctx.Err())
	case <-timer.C:
		return nil
	}
}
