// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"

	"github.com/cleave-dra/cleave/pkg/driver/processes"
)

// moreProcesses is how many a node has in addition in the loaded case.
const moreProcesses = 5000

// processBench measures claims of pods, whose processes Unprepare looks for: with as many processes on the node as there are, and
// with many more. The pods never run; they have cgroups, without processes, as those that have ended.
type processBench struct{ podClaims }

func (b *processBench) measure(ctx context.Context, r *report) (err error) {
	defer func() { err = errors.Join(err, b.removeGroups()) }()
	for i, device := range b.devices {
		if err := b.make(ctx, fmt.Sprintf("of-pod-%d", i), device); err != nil {
			return err
		}
	}
	few, err := b.singles(ctx, b.claims)
	if err != nil {
		return err
	}
	r.add(result{Name: "claim of a pod: unprepare p50", Value: millis(few.unprepare.percentile(50)),
		Limit: 1.5 * millis(few.floor.percentile(50)), Unit: "ms", Rule: "1.5 x floor alongside it"})
	fewTogether, err := b.together(ctx, b.claims, b.rounds/2)
	if err != nil {
		return err
	}
	end, err := startSleepers(ctx)
	if err != nil {
		return err
	}
	defer end()
	many, err := b.singles(ctx, b.claims)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("claim of a pod, %d more processes: ", moreProcesses)
	r.addDrifted(name+"unprepare p50", many.unprepare, few.unprepare, many.drift(few), "1.3 x without them, by the floor")
	together, err := b.together(ctx, b.claims, b.rounds/2)
	if err != nil {
		return err
	}
	r.add(result{Name: "claim of a pod: 8 at once: unprepare p99", Value: millis(fewTogether.unprepare.percentile(99)), Unit: "ms"})
	drift := float64(together.alone.percentile(50)) / float64(fewTogether.alone.percentile(50))
	r.add(result{Name: name + "8 at once: unprepare p99", Value: millis(together.unprepare.percentile(99)),
		Limit: 2 * drift * millis(fewTogether.unprepare.percentile(99)), Unit: "ms", Rule: "2 x without them, by the floor"})
	return b.measureTable(ctx, r)
}

// measureTable measures one look at the whole process table, by which a pod is looked for whose cgroup does not say.
func (b *processBench) measureTable(ctx context.Context, r *report) error {
	var table samples
	for range 20 {
		if err := timed(&table, func() error { _, err := processes.Host().OfPods(ctx, b.pods[:1]); return err }); err != nil {
			return fmt.Errorf("read the process table: %w", err)
		}
	}
	r.add(result{Name: fmt.Sprintf("%d more processes: one look at all", moreProcesses), Value: millis(table.percentile(50)), Unit: "ms"})
	return nil
}

// startSleepers starts many processes, and returns once all are there.
func startSleepers(ctx context.Context) (end func(), err error) {
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do sleep 3600 & i=$((i+1)); done; echo; wait", moreProcesses)
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start processes: %w", err)
	}
	end = func() {
		_ = cmd.Cancel()
		_ = cmd.Wait()
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		end()
		return nil, fmt.Errorf("wait for processes to start: %w", err)
	}
	return end, nil
}
