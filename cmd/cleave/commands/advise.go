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
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/tools/podhttp"
	"github.com/cleave-dra/cleave/pkg/tools/sizing"
)

// adviseFlags of `cleave advise`.
type adviseFlags struct {
	clientFlags
	format, driver string
	prometheus     sizing.Prometheus
	// plugins is their namespace.
	plugins string
	params  sizing.Params
}

// defaultAdvice is what advise does unless told otherwise.
var defaultAdvice = sizing.Params{Since: 7 * 24 * time.Hour, Margin: 0.2, Seen: 24 * time.Hour}

func newAdvise() *cobra.Command {
	f := &adviseFlags{}
	cmd := &cobra.Command{
		Use:   "advise",
		Short: "Compare what workloads have with what they use",
		Long: "advise shows for each workload which devices its claims have, how much memory and how many multiprocessors they were seen\n" +
			"to use, and the smallest device of the cluster that would do. It says how many GPUs would be free if all of it were\n" +
			"followed. It changes nothing.\n\n" +
			"Figures are those of the plugin's metrics in Prometheus, with --prometheus. Without it the plugins are asked, as by kubectl\n" +
			"port-forward, for the most that they have seen since they first looked at each claim; a plugin's restart begins anew.\n\n" +
			"A device that would do has more memory than was ever seen in use. Workloads that were seen for too short a time, or of\n" +
			"which figures are missing, get no advice.",
		Example: "  cleave advise\n" +
			"  cleave advise --prometheus http://localhost:9090\n" +
			"  cleave advise --prometheus http://localhost:9090 --since 336h --margin 0.5 -o json",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return cli.UsageError(err)
			}
			config, _, err := f.config()
			if err != nil {
				return err
			}
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				return fmt.Errorf("create a client for the API server at %s: %w", config.Host, err)
			}
			pods, err := podhttp.NewClient(config, cli.MaxMetrics)
			if err != nil {
				return err
			}
			advice, err := f.advise(cmd.Context(), client, pods.Get, time.Now())
			if err != nil {
				return err
			}
			return f.print(cmd.OutOrStdout(), advice)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&f.format, "output", "o", "table", "table, json or yaml")
	flags.StringVar(&f.prometheus.URL, "prometheus", "", "URL of Prometheus, such as that of kubectl port-forward; empty to ask the plugins")
	flags.StringVar(&f.prometheus.Selector, "selector", "",
		`matchers of all series, such as 'cluster="a"' where Prometheus has several clusters`)
	flags.DurationVar(&f.params.Since, "since", defaultAdvice.Since, "how long ago the figures of Prometheus begin")
	flags.StringVar(&f.plugins, "plugin-namespace", "cleave-system", "namespace of the plugins, without --prometheus")
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
	over := f.prometheus.URL != ""
	fail(!over && f.prometheus.Selector != "", "--selector needs --prometheus")
	fail(!over && f.params.Since != defaultAdvice.Since, "--since needs --prometheus: plugins know the most alone, since their first looks")
	fail(f.params.Since < time.Hour, "--since %s is less than an hour", f.params.Since)
	fail(math.IsNaN(f.params.Margin) || f.params.Margin < 0 || f.params.Margin > 10, "--margin %g is not in 0 to 10", f.params.Margin)
	fail(f.params.Seen <= 0, "--seen %s is not more than 0", f.params.Seen)
	fail(over && f.params.Seen > f.params.Since, "--seen %s is more than --since %s", f.params.Seen, f.params.Since)
	return errors.Join(errs...)
}

// reader reads a page of a pod.
type reader func(ctx context.Context, namespace, pod string, port int32, path string) ([]byte, error)

// advise reads the cluster, and Prometheus or the plugins by a reader.
func (f *adviseFlags) advise(ctx context.Context, client kubernetes.Interface, read reader, now time.Time) (*sizing.Advice, error) {
	var claims []*resourceapi.ResourceClaim
	err := each(ctx, "ResourceClaims", client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List, func(c *resourceapi.ResourceClaim) {
		if isAllocated(c, f.driver) {
			c.ManagedFields, c.Status.Devices = nil, nil
			claims = append(claims, c)
		}
	})
	if err != nil {
		return nil, err
	}
	params := f.params
	var figures *sizing.Figures
	if f.prometheus.URL != "" {
		params.Step = sizing.StepOf(params.Since)
		figures, err = f.prometheus.Read(ctx, now, params)
	} else {
		params.Since = 0
		figures, err = f.askPlugins(ctx, client, read, now, claims)
	}
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
	return cluster.Advise(figures, params)
}

// askPlugins asks the plugins for the most that they have seen.
func (f *adviseFlags) askPlugins(
	ctx context.Context, client kubernetes.Interface, read reader, now time.Time, claims []*resourceapi.ResourceClaim,
) (*sizing.Figures, error) {
	plugins := sizing.Plugins{Driver: f.driver, Get: read}
	list := func(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error) {
		opts.LabelSelector = sizing.PluginSelector
		return client.CoreV1().Pods(f.plugins).List(ctx, opts)
	}
	if err := each(ctx, "pods of the plugins", list, func(p *corev1.Pod) { plugins.Pods = append(plugins.Pods, p) }); err != nil {
		return nil, err
	}
	figures, err := plugins.Read(ctx, now, claims)
	if err != nil {
		return nil, fmt.Errorf("%w. Plugins are looked for in --plugin-namespace %s, and reading them takes the verbs get and create for "+
			"pods/portforward there; --prometheus takes neither", err, f.plugins)
	}
	return figures, nil
}

func (f *adviseFlags) print(w io.Writer, advice *sizing.Advice) error {
	if f.format != "table" {
		return cli.PrintAs(w, f.format, advice)
	}
	return advice.Print(w)
}
