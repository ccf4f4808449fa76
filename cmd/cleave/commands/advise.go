// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/tools/sizing"
)

// adviseFlags of `cleave advise`.
type adviseFlags struct {
	clientFlags
	format, driver string
	prometheus     sizing.Prometheus
	params         sizing.Params
}

// defaultAdvice is what advise does unless told otherwise.
var defaultAdvice = sizing.Params{Since: 7 * 24 * time.Hour, Margin: 0.2, Seen: 24 * time.Hour}

func newAdvise() *cobra.Command {
	f := &adviseFlags{}
	cmd := &cobra.Command{
		Use:   "advise --prometheus URL",
		Short: "Compare what workloads have with what they use",
		Long: "advise shows for each workload which devices its claims have, how much memory and how many multiprocessors they were seen\n" +
			"to use, by the plugin's metrics in Prometheus, and the smallest device of the cluster that would do. It says how many\n" +
			"GPUs would be free if all of it were followed. It changes nothing.\n\n" +
			"A device that would do has more memory than was ever seen in use. Workloads that were seen for too short a time, or of\n" +
			"which figures are missing, get no advice.",
		Example: "  cleave advise --prometheus http://localhost:9090\n" +
			"  cleave advise --prometheus http://localhost:9090 --since 336h --margin 0.5 -o json",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return cli.UsageError(err)
			}
			client, _, err := f.client()
			if err != nil {
				return err
			}
			advice, err := f.advise(cmd.Context(), client, time.Now())
			if err != nil {
				return err
			}
			return f.print(cmd.OutOrStdout(), advice)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&f.format, "output", "o", "table", "table, json or yaml")
	flags.StringVar(&f.prometheus.URL, "prometheus", "", "URL of Prometheus, such as that of kubectl port-forward")
	flags.StringVar(&f.prometheus.Selector, "selector", "",
		`matchers of all series, such as 'cluster="a"' where Prometheus has several clusters`)
	flags.DurationVar(&f.params.Since, "since", defaultAdvice.Since, "how long ago the figures begin")
	flags.Float64Var(&f.params.Margin, "margin", defaultAdvice.Margin, "what a device is to have beyond what was seen, as a part of that")
	flags.DurationVar(&f.params.Seen, "seen", defaultAdvice.Seen, "for how long a workload must have been seen")
	f.add(flags, "")
	flags.StringVar(&f.driver, "driver-name", v1alpha1.Group, "name of the DRA driver")
	return cmd
}

func (f *adviseFlags) check() error {
	errs := []error{nodeslices.CheckDriverName(f.driver)}
	fail := func(condition bool, format string, args ...any) {
		if condition {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fail(!slices.Contains([]string{"table", "json", "yaml"}, f.format), "--output %q is not one of table, json, yaml", f.format)
	fail(f.prometheus.URL == "", "--prometheus is not set")
	fail(f.params.Since < time.Hour, "--since %s is less than an hour", f.params.Since)
	fail(math.IsNaN(f.params.Margin) || f.params.Margin < 0 || f.params.Margin > 10, "--margin %g is not in 0 to 10", f.params.Margin)
	fail(f.params.Seen <= 0 || f.params.Seen > f.params.Since, "--seen %s is not in 0 to --since %s", f.params.Seen, f.params.Since)
	f.params.Step = sizing.StepOf(f.params.Since)
	return errors.Join(errs...)
}

// advise reads Prometheus, then the cluster.
func (f *adviseFlags) advise(ctx context.Context, client kubernetes.Interface, now time.Time) (*sizing.Advice, error) {
	figures, err := f.prometheus.Read(ctx, now, f.params)
	if err != nil {
		return nil, err
	}
	var claims []*resourceapi.ResourceClaim
	err = each(ctx, "ResourceClaims", client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List, func(c *resourceapi.ResourceClaim) {
		if isAllocated(c, f.driver) {
			c.ManagedFields, c.Status.Devices = nil, nil
			claims = append(claims, c)
		}
	})
	if err != nil {
		return nil, err
	}
	cluster := sizing.NewCluster(f.driver, claims)
	err = errors.Join(
		eachSlice(ctx, client, fields.Set{resourceapi.ResourceSliceSelectorDriver: f.driver}, cluster.AddSlice),
		each(ctx, "Pods", client.CoreV1().Pods(metav1.NamespaceAll).List, cluster.AddPod),
	)
	if err != nil {
		return nil, err
	}
	return cluster.Advise(figures, f.params)
}

func (f *adviseFlags) print(w io.Writer, advice *sizing.Advice) error {
	if f.format != "table" {
		return cli.PrintAs(w, f.format, advice)
	}
	return advice.Print(w)
}
