// SPDX-License-Identifier: Apache-2.0

// Command cluster starts and stops a real Kubernetes on this machine, of one
// node or several, made of nothing but processes that are built from Go modules.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"

	"github.com/cleave-dra/cleave/e2e/cluster"
)

const help = `cluster runs a real Kubernetes on this machine: etcd, containerd, the control
plane and a kubelet, as plain processes. It has one node, or several (up
--nodes), each in namespaces of its own. It needs root, Go, and on a fresh
machine Debian's package archive and Go's module sources.

Usage: cluster COMMAND [flags]

  up          install and build what is missing, start the cluster
  down        stop the cluster and remove all it left; the programs stay built
  status      show the processes of the cluster and how they are
  kubeconfig  print the path of the kubeconfig
  build       build the programs and do nothing else

Run "cluster COMMAND -h" for the flags of a command.

Exit status: 0 done, 1 failed (status: not healthy), 2 wrong usage.
`

// usageError is a mistake in how the program was called.
type usageError struct{ error }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	os.Exit(exitStatus(err, os.Stderr))
}

func exitStatus(err error, stderr io.Writer) int {
	var usage usageError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "cluster: %v\nRun \"cluster -h\" for help.\n", err)
		return 2
	case errors.Is(err, context.Canceled):
		fmt.Fprintf(stderr, "cluster: interrupted: %v\n", err)
		return 1
	default:
		fmt.Fprintf(stderr, "cluster: %v\n", err)
		return 1
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) == 0 {
		return usageError{errors.New("no command; there are up, down, status, kubeconfig, build")}
	}
	switch args[0] {
	case "-h", "-help", "--help", "help":
		_, err := io.WriteString(stdout, help)
		return err
	case "up":
		return up(ctx, args[1:], stdout)
	case "down":
		return down(ctx, args[1:], stdout)
	case "status":
		return status(ctx, args[1:], stdout)
	case "kubeconfig":
		return kubeconfig(args[1:], stdout)
	case "build":
		return build(ctx, args[1:], stdout)
	default:
		return usageError{fmt.Errorf("unknown command %q; there are up, down, status, kubeconfig, build", args[0])}
	}
}

func down(ctx context.Context, args []string, stdout io.Writer) error {
	f := newFlags("down", "Stops the cluster and removes all it left, whatever interrupted it. It is no\nerror when there is none.", stdout)
	f.dirFlag()
	if err := f.parse(args); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "stopping what runs in %s\n", f.options.Dir)
	if err := cluster.Down(ctx, f.options.Dir); err != nil {
		return err
	}
	_, err := fmt.Fprintln(stdout, "the cluster is down")
	return err
}

func status(ctx context.Context, args []string, stdout io.Writer) error {
	f := newFlags("status", "Shows the processes of the cluster and how they are.", stdout)
	c, err := f.open(args)
	if err != nil {
		return err
	}
	list, err := c.Status(ctx)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "COMPONENT\tPROCESS\tSTATE\tLOG")
	for _, s := range list {
		process, state := "-", "ready"
		if s.PID != 0 {
			process = fmt.Sprint(s.PID)
		}
		if s.Problem != nil {
			state = s.Problem.Error()
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", s.Name, process, state, s.LogFile)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return c.Healthy(ctx)
}

func kubeconfig(args []string, stdout io.Writer) error {
	f := newFlags("kubeconfig", "Prints the path of the administrator's kubeconfig.", stdout)
	c, err := f.open(args)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, c.Kubeconfig())
	return err
}

func build(ctx context.Context, args []string, stdout io.Writer) error {
	f := newFlags("build", "Builds the programs of the cluster that are missing or out of date.", stdout)
	f.buildFlags()
	tools := f.Bool("tools", false, "build or install what tests run besides a cluster instead: "+
		"Kubernetes' DRA driver, Prometheus, promtool, Kueue, drivers of CPUs and network cards, fast model actuation, "+
		"NVIDIA's device plugin, Chromium")
	driver := f.Bool("test-driver", false, "build Kubernetes' DRA driver alone instead")
	if err := f.parse(args); err != nil {
		return err
	}
	f.options.Output = stdout
	programs := cluster.Build
	if *tools {
		programs = cluster.BuildTools
	} else if *driver {
		programs = func(ctx context.Context, o cluster.Options) error {
			_, err := cluster.BuildDRATestDriver(ctx, o)
			return err
		}
	}
	if err := programs(ctx, f.options); err != nil {
		return err
	}
	_, err := fmt.Fprintln(stdout, "all programs are built")
	return err
}
