// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
	"github.com/cleave-dra/cleave/pkg/tools/repack"
	"github.com/cleave-dra/cleave/pkg/tools/repacking"
)

// repackFlags of `cleave repack`.
type repackFlags struct {
	clientFlags
	format, driver string
	apply          bool
	dryRun         string
	steps          int
	limits         repacking.Limits
	every          time.Duration
	windows        []string
	zone           string
	permit         repacking.Permit
}

func newRepack() *cobra.Command {
	f := &repackFlags{}
	service := cli.NewService()
	cmd := &cobra.Command{
		Use:   "repack",
		Short: "Restart pods so that whole GPUs become free",
		Long: "repack shows which pods to restart so that whole GPUs become free, the fewest pods first, and where their replacements\n" +
			"would be. It changes nothing.\n\n" +
			"With --apply it restarts them: one pod after the other by the Eviction API, so that PodDisruptionBudgets hold, each once\n" +
			"the replacement of the one before is ready where it was planned. It stops at the first surprise: a replacement that is\n" +
			"elsewhere, a cluster that is not the planned one anymore, a pod that takes too long. Run it again to go on.\n\n" +
			"Pods with the label or annotation " + v1alpha1.RepackKey + ": " + v1alpha1.RepackNever + " are left alone.",
		Example: "  cleave repack\n" +
			"  cleave repack -o wide\n" +
			"  cleave repack --apply --dry-run=server\n" +
			"  cleave repack --apply --steps 1",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.every > 0 {
				if err := service.Begin(cmd.Flags(), f.check); err != nil {
					return err
				}
			} else if err := f.check(); err != nil {
				return cli.UsageError(err)
			}
			return f.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&f.format, "output", "o", "table", "table, wide (with the pods that are not advised), json or yaml")
	f.add(flags, "")
	flags.StringVar(&f.driver, "driver-name", v1alpha1.Group, "name of the DRA driver")
	flags.BoolVar(&f.apply, "apply", false, "evict the pods, and wait for each replacement")
	flags.StringVar(&f.dryRun, "dry-run", "none", "none, or with --apply: server, to ask the API server and change nothing")
	flags.IntVar(&f.steps, "steps", 0, "with --apply: how many steps to take; 0 for all")
	flags.DurationVar(&f.limits.Eviction, "eviction-timeout", 10*time.Minute, "with --apply: for how long a PodDisruptionBudget may refuse")
	flags.DurationVar(&f.limits.Replacement, "replacement-timeout", 10*time.Minute,
		"with --apply: how long a pod and its replacement may take, besides the pod's grace period")
	flags.DurationVar(&f.every, "every", 0, "with --apply: do it again and again, so often; 0 for once")
	flags.StringArrayVar(&f.windows, "window", nil,
		`with --every: when pods may be evicted, such as "Sat,Sun 00:00-24:00" or "Mon-Fri 22:00-06:00"; may be repeated; always by default`)
	flags.StringVar(&f.zone, "time-zone", "UTC", "with --window: its time zone, such as Europe/Berlin")
	flags.IntVar(&f.permit.PerHour, "evictions-per-hour", 0, "with --every: how many pods may be evicted in an hour; 0 for any number")
	service.AddHiddenFlags(flags)
	return cmd
}

// check validates the flags, and reads the windows.
func (f *repackFlags) check() error {
	errs := []error{nodeslices.CheckDriverName(f.driver)}
	fail := func(condition bool, format string, args ...any) {
		if condition {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fail(!slices.Contains([]string{"table", "wide", "json", "yaml"}, f.format), "--output %q is not one of table, wide, json, yaml", f.format)
	fail(!slices.Contains([]string{"none", "server"}, f.dryRun), "--dry-run %q is not one of none, server", f.dryRun)
	fail(!f.apply && (f.dryRun != "none" || f.steps != 0 || f.every != 0), "--dry-run, --steps and --every are for --apply, which is not set")
	fail(f.apply && (f.format == "json" || f.format == "yaml"), "--output %s is for the advice: leave out --apply", f.format)
	fail(f.steps < 0 || f.permit.PerHour < 0 || f.every < 0, "--steps, --evictions-per-hour and --every are not negative")
	fail(f.limits.Eviction <= 0 || f.limits.Replacement <= 0, "--eviction-timeout and --replacement-timeout are positive")
	fail(f.every == 0 && (len(f.windows) > 0 || f.permit.PerHour > 0), "--window and --evictions-per-hour are for --every, which is not set")
	fail(f.every > 0 && f.dryRun != "none", "--dry-run is not for --every")
	f.permit.Windows = nil
	for _, text := range f.windows {
		w, err := repacking.ParseWindow(text)
		fail(err != nil, "--window: %w", err)
		f.permit.Windows = append(f.permit.Windows, w)
	}
	zone, err := time.LoadLocation(f.zone)
	fail(err != nil, "--time-zone: %w", err)
	f.permit.Zone = zone
	return errors.Join(errs...)
}

func (f *repackFlags) run(ctx context.Context, w io.Writer) error {
	client, _, err := f.client()
	if err != nil {
		return err
	}
	if !f.apply {
		advice, err := repackAdvice(ctx, client, f.driver)
		if err != nil {
			return err
		}
		return f.print(w, advice)
	}
	r := f.repacker(client, w)
	if f.every > 0 {
		return r.Serve(ctx, f.every, f.steps)
	}
	advice, err := r.Begin(ctx)
	if err != nil {
		return err
	}
	if err := f.print(w, advice); err != nil {
		return err
	}
	_, err = r.Apply(ctx, advice, f.steps)
	if stop := (*repacking.Stop)(nil); errors.As(err, &stop) {
		return fmt.Errorf("stopped: %w; run it again to go on", err)
	}
	return err
}

func (f *repackFlags) print(w io.Writer, advice *repack.Advice) error {
	if f.format == "json" || f.format == "yaml" {
		return cli.PrintAs(w, f.format, advice)
	}
	return advice.Print(w, f.format == "wide")
}

// repackPoll is how often pods under way are looked at.
const repackPoll = 2 * time.Second

func (f *repackFlags) repacker(client kubernetes.Interface, w io.Writer) *repacking.Repacker {
	return &repacking.Repacker{
		Client: client, Driver: f.driver, Limits: f.limits, Permit: f.permit, Poll: repackPoll, DryRun: f.dryRun == "server",
		Read: func(ctx context.Context) (*repack.Cluster, error) { return readRepack(ctx, client, f.driver, true) },
		Say:  func(format string, args ...any) { fmt.Fprintln(w, inspect.Printable(fmt.Sprintf(format, args...))) },
	}
}

// repackAdvice reads a cluster and advises.
func repackAdvice(ctx context.Context, client kubernetes.Interface, driver string) (*repack.Advice, error) {
	cluster, err := readRepack(ctx, client, driver, false)
	if err != nil {
		return nil, err
	}
	return cluster.Advise(ctx)
}
