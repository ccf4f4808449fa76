// SPDX-License-Identifier: Apache-2.0

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
)

const help = `testrun runs tests of this repository, from its root: make test and make test-all call it.

Usage: testrun [flags] core|rest|all

  core  what tells whether it works here: unit tests, and the most important ones on a real Kubernetes
  rest  what core leaves out: lint, fuzzing, the race detector, all other tests
  all   both

A test that failed is run once more, alone. If it passes then, it is flaky; the run passes with up to three of those.

`

// usageError is a mistake in how the program was called.
type usageError struct{ error }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	good, err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	os.Exit(exitStatus(good, err))
}

func exitStatus(good bool, err error) int {
	var usage usageError
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "testrun: %v\n", err)
		return 2
	case err != nil:
		fmt.Fprintf(os.Stderr, "testrun: %v\n", err)
		return 1
	case !good:
		return 1
	}
	return 0
}

func run(ctx context.Context, args []string, out io.Writer) (bool, error) {
	flags := flag.NewFlagSet("testrun", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Usage = func() {
		fmt.Fprint(out, help)
		flags.PrintDefaults()
	}
	runs := flags.Int("runs", 0, "repeat the chosen tests so often while every processor is busy, and count")
	tests := flags.String("tests", "", "a regular expression of the names of tests to run, or core for the end-to-end tests of core")
	logs := flags.String("logs", filepath.Join("bin", "test"), "the directory for logs, which is emptied")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return false, err
	} else if err != nil {
		return false, usageError{err}
	}
	switch {
	case flags.NArg() != 1:
		return false, usageError{errors.New("name one of core, rest and all")}
	case *runs < 0:
		return false, usageError{fmt.Errorf("-runs %d: give a positive number", *runs)}
	case *runs > 0 && *tests == "":
		return false, usageError{errors.New("say which tests to repeat: RUNS=10 TESTS='^TestMPS', or TESTS=core")}
	}
	phases, err := plan(flags.Arg(0))
	if err != nil {
		return false, err
	}
	if *tests != "" {
		if phases, err = chosen(phases, *tests); err != nil {
			return false, err
		}
	}
	return start(ctx, phases, *runs, *logs, out)
}

func start(ctx context.Context, phases []phase, runs int, logs string, out io.Writer) (bool, error) {
	root, err := os.Getwd()
	if err != nil {
		return false, err
	}
	if logs, err = filepath.Abs(logs); err != nil {
		return false, err
	}
	if err := errors.Join(os.RemoveAll(logs), os.MkdirAll(logs, 0o750)); err != nil {
		return false, fmt.Errorf("empty the directory for logs: %w", err)
	}
	r := &runner{root: root, logs: logs, out: out, began: time.Now()}
	beating, still := context.WithCancel(ctx)
	defer still()
	go r.beats(beating)
	if runs > 0 {
		if err := r.repeat(ctx, phases, runs, busy); err != nil {
			return false, err
		}
		return r.counts(runs), nil
	}
	if err := r.run(ctx, phases); err != nil && len(r.failures) == 0 {
		return false, err
	}
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("interrupted: %w", err)
	}
	chance, lasting := r.again(ctx)
	return r.report(chance, lasting)
}
