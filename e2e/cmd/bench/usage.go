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

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// usageBench measures what it costs that the plugin looks at what claims use (--usage-every), with as many partitions as there can be. All
// are prepared. One of each GPU is measured; the others have a process each that keeps them busy.
type usageBench struct {
	podClaims
	// measured are the indexes of the claims that are.
	measured []int
	busy     []*exec.Cmd
	clients  [][]string
}

// usages are how often the plugin looks, in the order in which they are measured; then in the other, as a machine that others use is not
// the same from one minute to the next.
var usages = []struct{ every, name string }{{"0s", "no looks at usage"}, {"15s", "a look every 15 s"}, {"1s", "a look every second"}}

const (
	// usageSettles is how long the plugin is left alone after its start: it has looked at least twice by then.
	usageSettles = 20 * time.Second
	// usageTime is how long claims are measured each time, and usageLooks how often its memory is looked at before.
	usageTime  = 16 * time.Second
	usageLooks = 20
	// What the looks may cost: Prepare, and memory in MB.
	usageTimes, usageMemory = 1.05, 4
)

// usageCost is what was measured.
type usageCost struct {
	operations
	memory []float64 // MB
}

func (b *usageBench) measure(ctx context.Context, r *report) (err error) {
	defer func() { err = errors.Join(err, b.clear(context.WithoutCancel(ctx))) }()
	if err := b.fill(ctx); err != nil {
		return err
	}
	costs := make([]usageCost, len(usages))
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}} {
		for _, i := range order {
			if err := b.measureEvery(ctx, &costs[i], usages[i].every); err != nil {
				return fmt.Errorf("%s: %w", usages[i].name, err)
			}
		}
	}
	without := costs[0]
	for i, c := range costs {
		name := fmt.Sprintf("%d partitions, %d busy, %s: ", len(b.claims), len(b.busy), usages[i].name)
		p50 := result{Name: name + "prepare p50", Value: millis(c.prepare.percentile(50)), Unit: "ms"}
		memory := result{Name: name + "anonymous memory", Value: median(c.memory), Unit: "MB"}
		if i > 0 {
			drift := float64(c.floor.percentile(50)) / float64(without.floor.percentile(50))
			p50.Limit, p50.Rule = usageTimes*drift*millis(without.prepare.percentile(50)), "1.05 x without, by the floor"
			memory.Limit, memory.Rule = median(without.memory)+usageMemory, "4 MB more than without"
		}
		r.add(p50)
		r.add(result{Name: name + "prepare p99", Value: millis(c.prepare.percentile(99)), Unit: "ms"})
		r.add(memory)
	}
	return nil
}

// median of numbers.
func median(of []float64) float64 { return slices.Sorted(slices.Values(of))[len(of)/2] }

// fill prepares the claims, and has processes use the devices of all that are not measured.
func (b *usageBench) fill(ctx context.Context) error {
	place := map[string]int{} // by GPU and start, as the simulator lists partitions
	for g, names := range b.partitions {
		for i, name := range names {
			if err := b.make(ctx, fmt.Sprintf("used-%d-%d", g, i), name); err != nil {
				return err
			}
			at := len(b.claims) - 1
			if i == 0 {
				b.measured = append(b.measured, at)
				continue
			}
			_, start, _ := gpu.ParsePartitionName(name)
			place[fmt.Sprintf("%d %d", g, start)] = at
		}
	}
	for _, claim := range b.claims {
		if err := prepare(ctx, b.plugin, claim); err != nil {
			return err
		}
	}
	partitions, err := b.node.Partitions(ctx)
	if err != nil {
		return err
	}
	for _, p := range partitions {
		start, _, _ := strings.Cut(p.Placement, ":")
		at, ok := place[p.GPU+" "+start]
		if !ok {
			continue
		}
		if err := b.keepBusy(ctx, at, "--gpu", p.GPU, "--gi", p.GPUInstance, "--ci", p.ComputeInstance); err != nil {
			return err
		}
	}
	if len(b.busy) != len(place) || len(b.claims) != len(place)+len(b.measured) {
		return fmt.Errorf("%d of %d partitions are busy", len(b.busy), len(place))
	}
	return nil
}

// keepBusy starts a process of a claim's pod that uses a device.
func (b *usageBench) keepBusy(ctx context.Context, claim int, device ...string) error {
	cmd := exec.CommandContext(ctx, "sleep", "3600")
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a process: %w", err)
	}
	b.busy = append(b.busy, cmd)
	pid := strconv.Itoa(cmd.Process.Pid)
	for _, group := range b.of[claim] {
		err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(pid), 0)
		if err != nil && !errors.Is(err, syscall.ENOSPC) { // of cpuset, before anybody gives it processors
			return fmt.Errorf("move a process into the cgroup of a pod: %w", err)
		}
	}
	load := append([]string{"load", "--sm", "40", "--dram", "20", "--memory", "2Gi", "--pid", pid}, device...)
	if _, err := b.node.Sim(ctx, load...); err != nil {
		return err
	}
	b.clients = append(b.clients, append([]string{"--pid", pid}, device[:2]...))
	return nil
}

// clear ends the processes and gives the claims back.
func (b *usageBench) clear(ctx context.Context) error {
	var errs []error
	for _, client := range b.clients {
		_, err := b.node.Sim(ctx, append([]string{"client", "remove"}, client...)...)
		errs = append(errs, err)
	}
	for _, cmd := range b.busy {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	if err := b.restart(ctx); err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, claim := range b.claims {
		errs = append(errs, unprepare(ctx, b.plugin, claim))
	}
	return errors.Join(append(errs, b.removeGroups())...)
}

// measureEvery measures a plugin that looks so often.
func (b *usageBench) measureEvery(ctx context.Context, c *usageCost, every string) error {
	if err := b.restart(ctx, "--usage-every="+every); err != nil {
		return err
	}
	if err := pause(ctx, usageSettles); err != nil {
		return err
	}
	if err := b.checkFigures(ctx, every); err != nil {
		return err
	}
	for range usageLooks {
		memory, err := b.memory("RssAnon")
		if err != nil {
			return err
		}
		c.memory = append(c.memory, memory)
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	for i, began := 0, time.Now(); time.Since(began) < usageTime; i++ {
		claim := b.claims[b.measured[i%len(b.measured)]]
		if err := timed(&c.floor, func() error { return b.floor(ctx, claim) }); err != nil {
			return err
		}
		if err := unprepare(ctx, b.plugin, claim); err != nil {
			return err
		}
		if err := timed(&c.prepare, func() error { return prepare(ctx, b.plugin, claim) }); err != nil {
			return err
		}
	}
	return nil
}

// checkFigures checks that the plugin has figures of the claims that are in use, or that it does not look.
func (b *usageBench) checkFigures(ctx context.Context, every string) error {
	all, err := b.node.Metrics(ctx)
	if err != nil {
		return err
	}
	active := 0
	for name, value := range all {
		if v, err := strconv.ParseFloat(value, 64); err == nil && v > 0.3 && strings.HasPrefix(name, "cleave_claim_sm_active_ratio{") {
			active++
		}
	}
	want := len(b.busy)
	if every == usages[0].every {
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
