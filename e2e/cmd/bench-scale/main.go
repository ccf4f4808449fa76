// SPDX-License-Identifier: Apache-2.0

// Command bench-scale measures where a cluster's pods land, how fast, and what a node costs: a real etcd, API server and
// scheduler, and nodes that publish GPUs but have no kubelet. Each scheduler gets the same work in the same run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/cluster"
)

// options of a run.
type options struct {
	source     string
	output     string
	nodes      int
	allocated  int
	mixedNodes int
	mixedPods  int
	landing    int
	pods       int
	urgent     bool
	schedulers []string
	kinds      []kind
	nodeModel  string
	policy     *v1alpha1.NodePolicy // nil for the built-in one
}

func main() {
	o, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-scale:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err = run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-scale:", err)
		os.Exit(1)
	}
}

// parse reads the command line.
func parse(args []string) (options, error) {
	o := options{}
	var names, kinds, policy string
	flags := flag.NewFlagSet("bench-scale", flag.ExitOnError)
	flags.StringVar(&o.source, "source", ".", "root of the Cleave repository")
	flags.StringVar(&o.output, "o", "", "file for the numbers as JSON")
	flags.IntVar(&o.nodes, "nodes", 1000, "nodes, none of which runs a kubelet")
	flags.StringVar(&o.nodeModel, "node-model", "hgx-h100", "model of the nodes")
	flags.StringVar(&policy, "policy", "", "file of a NodePolicy, by which the nodes publish; empty for the built-in one")
	flags.StringVar(&names, "schedulers", defaultScheduler+","+cleaveScheduler, "schedulers to compare, the base first")
	flags.StringVar(&kinds, "kinds", "1g.10gb,whole,share", "kinds of pods to place; empty for none")
	flags.IntVar(&o.landing, "landing-pods", 60, "pods of a kind whose GPUs are counted")
	flags.IntVar(&o.pods, "pods", 240, "pods of a kind whose rate is measured")
	flags.IntVar(&o.allocated, "allocated", 10_000, "claims that are allocated already in the loaded case; 0 leaves it out")
	flags.BoolVar(&o.urgent, "urgent", true, "measure urgent pods in a cluster that is full of others, with cleave-scheduler")
	flags.IntVar(&o.mixedNodes, "mixed-nodes", 100, "nodes for pods of many kinds that come and go")
	flags.IntVar(&o.mixedPods, "mixed-pods", 2000, "pods of many kinds that come and go; 0 leaves it out")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.schedulers = strings.Split(names, ",")
	for _, s := range o.schedulers {
		if s != defaultScheduler && s != cleaveScheduler {
			return o, fmt.Errorf("unknown scheduler %q: there are %s and %s", s, defaultScheduler, cleaveScheduler)
		}
	}
	for name := range strings.SplitSeq(kinds, ",") {
		if name == "" {
			continue
		}
		k, err := findKind(name)
		if err != nil {
			return o, err
		}
		o.kinds = append(o.kinds, k)
	}
	if policy != "" {
		data, err := os.ReadFile(policy)
		if err != nil {
			return o, fmt.Errorf("read the policy: %w", err)
		}
		if o.policy, err = v1alpha1.DecodeNodePolicy(data); err != nil {
			return o, fmt.Errorf("read the policy %s: %w", policy, err)
		}
	}
	source, err := filepath.Abs(o.source)
	o.source = source
	return o, err
}

func run(ctx context.Context, o options) error {
	for _, name := range o.programs() { // now, not after ten minutes
		if _, err := os.Stat(filepath.Join(o.source, "bin", name)); err != nil {
			return fmt.Errorf("look for bin/%s: %w (make build scheduler builds it)", name, err)
		}
	}
	r := newReport(o)
	err := measure(ctx, o, r)
	r.setGoals(o)
	if len(r.Numbers) > 0 { // also of a run that was ended early
		err = errors.Join(err, r.print(os.Stdout))
	}
	if err != nil {
		return err
	}
	if o.output != "" {
		err = r.write(o.output)
	}
	if missed := r.missed(); len(missed) > 0 {
		err = errors.Join(err, fmt.Errorf("goals are missed:\n%s", strings.Join(missed, "\n")))
	}
	return err
}

// measure fills the report.
func measure(ctx context.Context, o options, r *report) error {
	if len(o.kinds) > 0 {
		if err := withCluster(ctx, o, func(ctx context.Context, b *bench) error { return b.scale(ctx, r) }); err != nil {
			return err
		}
	}
	if o.urgent && slices.Contains(o.schedulers, cleaveScheduler) {
		if err := withCluster(ctx, o, func(ctx context.Context, b *bench) error { return crowded{b}.measure(ctx, r) }); err != nil {
			return err
		}
	}
	if o.mixedPods == 0 {
		return nil
	}
	return withCluster(ctx, o, func(ctx context.Context, b *bench) error { return b.mixed(ctx, r) })
}

// programs are those of bin that a run needs.
func (o options) programs() []string {
	var programs []string
	if slices.Contains(o.schedulers, cleaveScheduler) {
		programs = append(programs, cleaveScheduler)
	}
	if o.allocated > 0 {
		programs = append(programs, cleaveProgram)
	}
	return programs
}

// withCluster runs a measurement in a control plane of its own.
func withCluster(ctx context.Context, o options, measure func(context.Context, *bench) error) (err error) {
	c, err := cluster.Up(ctx, cluster.Options{Source: o.source, Output: os.Stderr, ControlPlane: true})
	if err != nil {
		return err
	}
	defer func() {
		// Not ctx: an interrupted run cleans up as well.
		if downErr := c.Down(context.WithoutCancel(ctx)); err == nil {
			err = downErr
		}
	}()
	b, err := newBench(ctx, o, c)
	if err != nil {
		return err
	}
	defer b.close()
	return measure(ctx, b)
}
