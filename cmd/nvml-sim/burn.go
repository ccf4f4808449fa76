// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// newBurn is a program that keeps GPUs busy by itself.
func newBurn() *cobra.Command {
	var script, files string
	c := onRoot("burn --script SCRIPT", "Keep GPUs or a partition busy by a script, as a CUDA program",
		`Keep GPUs or a partition busy by a script, as a CUDA program does that is in a container or on the node.

It uses what it has device files for: the first partition, or else all GPUs that are not in MIG mode. A container needs
the directory of the node besides, which stands in for the kernel driver, and the node's PIDs (hostPID).

A script is phases, of which each follows the one before:
  sm 40, dram 20, memory 6Gi for 30s; idle for 20s; sm 90
The percents are of the time in which it uses all multiprocessors and of the memory bandwidth, 0 where a phase does not
name them, as does idle. Memory stays as it was until a phase names another size. After the last phase the program ends;
without a time, that lasts until a signal comes or the GPU is lost.`, func(n *sim.Node) error {
			phases, err := parseScript(script)
			if err != nil {
				return usageError{fmt.Errorf("--script: %w", err)}
			}
			devices, err := n.Clients().Usable(files)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return burn(ctx, n, devices, phases)
		})
	c.Example = "  nvml-sim burn --root /tmp/h100 --script 'sm 40, memory 6Gi for 30s; idle for 20s'"
	c.Flags().StringVar(&script, "script", "", "`phases`, such as 'sm 40, memory 6Gi for 30s; idle for 20s'")
	c.Flags().StringVar(&files, "files", "/", "`directory` below whose dev are the device files that the program has")
	return c
}

// burn makes this process a client of the devices, by a script.
func burn(ctx context.Context, n *sim.Node, devices []sim.VisiblePartition, phases []phase) (err error) {
	h, err := n.Clients().Hold("nvml-sim")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	return play(ctx, phases, func(p phase) error {
		for _, d := range devices {
			if err := h.Burn(d.GPU, d.GPUInstance, d.ComputeInstance, p.memory, p.load); err != nil {
				return err
			}
			fmt.Fprintf(stdout, "%s: %s\n", d.UUID, p)
		}
		return nil
	}, h.Check)
}

// phase is a part of a script.
type phase struct {
	load   sim.Load
	memory uint64
	lasts  time.Duration // 0: until the program ends
}

func (p phase) String() string {
	text := fmt.Sprintf("sm %d, dram %d, memory %d bytes", p.load.SM, p.load.DRAM, p.memory)
	if p.lasts > 0 {
		text += " for " + p.lasts.String()
	}
	return text
}

// parseScript reads the phases of a script.
func parseScript(text string) ([]phase, error) {
	var phases []phase
	var memory uint64
	for part := range strings.SplitSeq(text, ";") {
		if len(phases) > 0 && phases[len(phases)-1].lasts == 0 {
			return nil, fmt.Errorf("phase %d has no time, and is not the last", len(phases))
		}
		p, err := parsePhase(part, memory)
		if err != nil {
			return nil, fmt.Errorf("phase %q: %w", strings.TrimSpace(part), err)
		}
		memory = p.memory
		phases = append(phases, p)
	}
	return phases, nil
}

// parsePhase reads one, after a phase with so much memory.
func parsePhase(text string, memory uint64) (phase, error) {
	p := phase{memory: memory}
	what, lasts, timed := strings.Cut(text, " for ")
	if timed {
		var err error
		if p.lasts, err = time.ParseDuration(strings.TrimSpace(lasts)); err != nil || p.lasts <= 0 {
			return p, fmt.Errorf("%q is no time such as 30s", strings.TrimSpace(lasts))
		}
	}
	for item := range strings.SplitSeq(what, ",") {
		if err := p.read(strings.Fields(item)); err != nil {
			return p, err
		}
	}
	return p, nil
}

// read reads what a phase says of one thing.
func (p *phase) read(words []string) (err error) {
	switch {
	case len(words) == 1 && words[0] == "idle":
		return nil
	case len(words) != 2:
		return fmt.Errorf("want idle, sm PERCENT, dram PERCENT or memory SIZE, not %q", strings.Join(words, " "))
	case words[0] == "memory":
		p.memory, err = parseMemory(words[1])
		return err
	}
	to := map[string]*int{"sm": &p.load.SM, "dram": &p.load.DRAM}[words[0]]
	if to == nil {
		return fmt.Errorf("there is sm, dram and memory, not %s", words[0])
	}
	if *to, err = strconv.Atoi(words[1]); err != nil || *to < 0 || *to > 100 {
		return fmt.Errorf("%s %s is not a percent of 0 to 100", words[0], words[1])
	}
	return nil
}

// checkEvery is how often a program looks whether its GPU is still there.
const checkEvery = time.Second

// play begins one phase after the other, each when the one before has lasted, until ctx or the script ends or a check fails.
func play(ctx context.Context, phases []phase, begin func(phase) error, check func() error) error {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for _, p := range phases {
		if err := begin(p); err != nil {
			return err
		}
		var over <-chan time.Time // never
		if p.lasts > 0 {
			over = time.After(p.lasts)
		}
		for lasting := true; lasting; {
			select {
			case <-ctx.Done():
				return nil
			case <-over:
				lasting = false
			case <-tick.C:
				if err := check(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
