// SPDX-License-Identifier: Apache-2.0

// Command soak keeps a local cluster with Cleave under fire and reports what it found (package e2e/soak). It ends with
// exit status 1 if there was a violation or a leak, or if an hour of it missed a goal.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cleave-dra/cleave/e2e/soak"
)

func main() {
	opts := soak.Options{Output: os.Stdout}
	flag.StringVar(&opts.Source, "source", ".", "root of the Cleave repository")
	flag.StringVar(&opts.Dir, "dir", "/var/lib/cleave-soak", "directory of the cluster")
	flag.DurationVar(&opts.Duration, "duration", 5*time.Minute, "how long pods and faults come")
	flag.Uint64Var(&opts.Seed, "seed", 1, "what determines the order of pods and of faults")
	flag.StringVar(&opts.History, "history", filepath.Join("bin", "soak-history.jsonl"), "file for the history that is checked")
	only := flag.String("only", "", "kinds of faults to inject, as the report names them, separated by commas; none for all")
	out := flag.String("o", "", "file for the report as JSON")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, opts, *only, *out)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, opts soak.Options, only, out string) error {
	var err error
	if opts.Source, err = filepath.Abs(opts.Source); err != nil {
		return err
	}
	if opts.Only, err = kinds(only); err != nil {
		return err
	}
	report, err := soak.Run(ctx, opts)
	if report == nil {
		return err
	}
	fmt.Fprintln(os.Stdout)
	err = errors.Join(err, report.Write(os.Stdout), write(report, out))
	if err == nil && !report.OK() {
		return fmt.Errorf("%d violations and %d leaks with seed %d", len(report.Violations), len(report.Leaks), opts.Seed)
	}
	if missed := report.Missed(); err == nil && len(missed) > 0 && len(opts.Only) == 0 {
		return fmt.Errorf("the goals of e2e/soak/README.md are missed with seed %d: %s", opts.Seed, strings.Join(missed, "; "))
	}
	return err
}

// kinds reads a list of kinds of faults.
func kinds(text string) ([]soak.Kind, error) {
	var list []soak.Kind
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		if name == "" {
			continue
		}
		known := false
		for _, k := range soak.Kinds() {
			known = known || string(k) == name
		}
		if !known {
			return nil, fmt.Errorf("there is no kind of fault %q; there are: %q", name, soak.Kinds())
		}
		list = append(list, soak.Kind(name))
	}
	return list, nil
}

func write(report *soak.Report, path string) error {
	if path == "" {
		return nil
	}
	data, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the report: %w", err)
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
