// SPDX-License-Identifier: Apache-2.0

// Command release builds the files of a release and verifies them, and collects the licenses of what programs link.
// docs/release.md describes the files.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
)

const usage = "use: release make [flags], or release licenses [flags] PROGRAM..."

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	source := flags.String("source", "../..", "the repository")
	output := flags.String("o", "", "file or directory to write")
	switch args[0] {
	case "licenses":
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return writeLicenses(ctx, *source, *output, flags.Args())
	case "make":
		r := release{}
		flags.StringVar(&r.version, "version", "", "version, such as v0.1.0")
		flags.BoolVar(&r.dirty, "dirty", false, "release the working tree with changes that are not committed, to try")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		var err error
		if r.repository, err = filepath.Abs(*source); err != nil {
			return err
		}
		r.dir = filepath.Join(r.repository, "bin", "release", r.version)
		if *output != "" {
			r.dir = *output
		}
		return r.make(ctx)
	}
	return fmt.Errorf("there is no command %q: %s", args[0], usage)
}
