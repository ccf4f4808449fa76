// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/cleave-dra/cleave/e2e/cluster"
)

// flags are those of one command, with its own help.
type flags struct {
	*flag.FlagSet
	options  cluster.Options
	gates    string
	runtime  string
	recreate bool
	help     func()
}

func newFlags(command, summary string, stdout io.Writer) *flags {
	f := &flags{FlagSet: flag.NewFlagSet(command, flag.ContinueOnError)}
	f.SetOutput(io.Discard) // exitStatus prints errors, once
	f.help = func() {
		fmt.Fprintf(stdout, "Usage: cluster %s [flags]\n\n%s\n\nFlags:\n", command, summary)
		f.SetOutput(stdout)
		f.PrintDefaults()
	}
	return f
}

func (f *flags) dirFlag() {
	f.StringVar(&f.options.Dir, "dir", cluster.DefaultDir, "`directory` that holds all of the cluster")
}

func (f *flags) buildFlags() {
	f.StringVar(&f.options.Version, "kubernetes-version", "",
		"`version` of Kubernetes: "+strings.Join(cluster.Versions(),
			" or ")+" (default $"+cluster.VersionVariable+", else "+cluster.DefaultVersion+")")
	f.StringVar(&f.options.BinDir, "bin-dir", "", "`directory` that keeps the built programs (default bin/kubernetes in the repository)")
}

// open reads the arguments of a command about a cluster that runs, and opens it.
func (f *flags) open(args []string) (*cluster.Cluster, error) {
	f.dirFlag()
	if err := f.parse(args); err != nil {
		return nil, err
	}
	return cluster.Open(f.options.Dir)
}

func (f *flags) parse(args []string) error {
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		f.help()
		return err
	}
	if err != nil {
		return usageError{err}
	}
	if f.NArg() > 0 {
		return usageError{fmt.Errorf("%s: unexpected argument %q", f.Name(), f.Arg(0))}
	}
	if f.options.FeatureGates, err = parseGates(f.gates); err != nil {
		return usageError{err}
	}
	if f.runtime != "" {
		f.options.RuntimeConfig = strings.Split(f.runtime, ",")
	}
	if f.options, err = f.options.Resolve(); err != nil {
		return usageError{err}
	}
	return nil
}

// parseGates reads A=true,B=false.
func parseGates(list string) (map[string]bool, error) {
	gates := map[string]bool{}
	if list == "" {
		return gates, nil
	}
	for item := range strings.SplitSeq(list, ",") {
		name, value, _ := strings.Cut(item, "=")
		if name == "" || (value != "true" && value != "false") {
			return nil, fmt.Errorf("read the feature gate %q: write NAME=true or NAME=false", item)
		}
		gates[name] = value == "true"
	}
	return gates, nil
}
