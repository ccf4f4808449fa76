// SPDX-License-Identifier: Apache-2.0

// Command bench measures Cleave on this machine against the floor of the same machine in the same run: what one read
// of a claim from the API server, one file and one empty gRPC call take without any driver.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/node"
)

// options of a run.
type options struct {
	source  string
	output  string
	samples int
	rounds  int
	claims  int
	usage   bool
	compare string
}

func main() {
	o := options{}
	flag.StringVar(&o.source, "source", ".", "root of the Cleave repository")
	flag.StringVar(&o.output, "o", "", "file for the numbers as JSON")
	flag.IntVar(&o.samples, "samples", 300, "single operations to measure")
	flag.IntVar(&o.rounds, "rounds", 200, "rounds of eight claims at once")
	flag.IntVar(&o.claims, "claims", 200, "claims that are prepared already in the loaded case")
	flag.BoolVar(&o.usage, "usage", false, "measure what looks at the usage of claims cost alone")
	flag.StringVar(&o.compare, "compare", "", "measure other builds of the plugin beside this one alone, as in before=../before/bin,...")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	source, err := filepath.Abs(o.source)
	if err != nil {
		return err
	}
	// The API server, etcd and this program share the machine with what is measured. With two cores, one collection of
	// theirs stops everything for ten milliseconds: every 99th percentile would be theirs. The floor sees the same machine.
	debug.SetGCPercent(apparatusGC)
	c, err := cluster.Up(ctx, cluster.Options{
		Source: source, Output: os.Stderr, Environment: []string{"GOGC=" + strconv.Itoa(apparatusGC)},
	})
	if err != nil {
		return err
	}
	defer func() {
		// Not ctx: an interrupted run cleans up as well.
		if downErr := c.Down(context.WithoutCancel(ctx)); err == nil {
			err = downErr
		}
	}()
	dir, err := c.GuestDir("bench")
	if err != nil {
		return err
	}
	trace := filepath.Join(dir, "calls")
	n, err := node.Create(ctx, node.Options{
		Cluster: c, Bin: filepath.Join(source, "bin"), Model: "hgx-h100", Dir: dir, Quiet: true,
		Environment: []string{"NVML_SIM_TRACE=" + trace},
	})
	if err != nil {
		return err
	}
	if err := n.Supervisor.Start(ctx); err != nil {
		return err
	}
	defer func() { _ = n.Supervisor.Kill() }() // the cluster's end takes its servers
	b := &bench{options: o, cluster: c, node: n, trace: trace}
	report, err := b.measure(ctx)
	if err != nil {
		return fmt.Errorf("%w\nthe plugin's log ends with:\n%s", err, n.LogTail(15))
	}
	if err := report.print(os.Stdout); err != nil {
		return err
	}
	if o.output == "" {
		return report.verdict()
	}
	data, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the numbers: %w", err)
	}
	if err := os.WriteFile(o.output, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the numbers: %w", err)
	}
	return report.verdict()
}

// apparatusGC is GOGC of all programs but the plugin.
const apparatusGC = 400

// startTimeout bounds the plugin's start.
const startTimeout = time.Minute
