// SPDX-License-Identifier: Apache-2.0

// Command gpulane tries Cleave on a machine with a real GPU; see docs/hardware.md. It is built as bin/gpu-lane/gpu-lane,
// next to the programs that it needs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cleave-dra/cleave/e2e/gpulane"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// enter is the command by which this program becomes a client in namespaces of its own.
const enter = "enter"

func main() {
	if len(os.Args) == 3 && os.Args[1] == enter {
		if err := gpulane.Enter(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "gpu-lane:", err)
			os.Exit(exitFailed)
		}
		return
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	opts := gpulane.Options{Output: stdout}
	flags := flag.NewFlagSet("gpu-lane", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&opts.Out, "out", "gpu-lane-results", "directory for the results")
	flags.StringVar(&opts.DriverRoot, "driver-root", "/", "root of the NVIDIA driver's files")
	timeout := flags.Duration("timeout", 8*time.Minute, "end the run after this time")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "gpu-lane: unexpected argument %q\n", flags.Arg(0))
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	report, err := start(ctx, opts)
	if err != nil {
		fmt.Fprintln(stderr, "gpu-lane:", err)
		return exitFailed
	}
	if report.Count(gpulane.Fail) > 0 {
		return exitFailed
	}
	return exitOK
}

// start finds the programs next to this one.
func start(ctx context.Context, opts gpulane.Options) (*gpulane.Report, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	for _, path := range []*string{&opts.Out, &opts.DriverRoot} {
		if *path, err = filepath.Abs(*path); err != nil {
			return nil, fmt.Errorf("find the current directory: %w", err)
		}
	}
	opts.Dir, opts.Self = filepath.Dir(self), []string{self, enter}
	return gpulane.Run(ctx, opts)
}
