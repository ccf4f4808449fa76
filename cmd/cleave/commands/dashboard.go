// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/tools/dashboard"
	"github.com/cleave-dra/cleave/pkg/tools/fleet"
	"github.com/cleave-dra/cleave/pkg/tools/sizing"
)

// dashboardFlags of `cleave dashboard`.
type dashboardFlags struct {
	clientFlags
	address, driver string
	pods            bool
	prometheus      sizing.Prometheus
	served          dashboard.Config
}

func newDashboard() *cobra.Command {
	f := &dashboardFlags{}
	service := cli.NewService()
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "Show the GPUs of a cluster in a browser",
		Long: "dashboard serves pages that show the GPUs of all nodes, which claims they are allocated to, and which claims wait.\n" +
			"They follow changes by themselves. It only reads, has no login, and listens on this machine's loopback address unless\n" +
			"--address says otherwise: whoever can connect sees the names of claims and pods of all namespaces.\n\n" +
			cli.EnvironmentHelp + "--address by ADDRESS.",
		Example: "  cleave dashboard\n" +
			"  cleave dashboard --kubeconfig ~/clusters/one --address 127.0.0.1:9090",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := service.Begin(cmd.Flags(), f.check); err != nil {
				return err
			}
			return f.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.address, "address", "127.0.0.1:8080", "address to serve HTTP at")
	flags.StringSliceVar(&f.served.Hosts, "allowed-hosts", nil,
		"host names that requests may name, apart from localhost and IP addresses; others are refused")
	f.add(flags, "")
	flags.StringVar(&f.driver, "driver-name", v1alpha1.Group, "name of the DRA driver")
	flags.BoolVar(&f.pods, "pods", true, "show pending pods that request extended resources, or whose claims are not created: needs pods, "+
		"resourceclaimtemplates and resourcequotas")
	flags.StringVar(&f.prometheus.URL, "prometheus", "", "URL of Prometheus, for what claims use and the page with advice; empty for neither")
	flags.StringVar(&f.prometheus.Selector, "prometheus-selector", "",
		`matchers of all series, such as 'cluster="a"' where Prometheus has several clusters`)
	service.AddHiddenFlags(flags)
	return cmd
}

func (f *dashboardFlags) check() error {
	if f.address == "" {
		return errors.New("--address is not set")
	}
	if f.prometheus.Selector != "" && f.prometheus.URL == "" {
		return errors.New("--prometheus-selector needs --prometheus")
	}
	u, err := url.Parse(f.prometheus.URL)
	if err != nil || f.prometheus.URL != "" && (u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("--prometheus %q is not a URL such as http://prometheus.monitoring:9090", f.prometheus.URL)
	}
	return nodeslices.CheckDriverName(f.driver)
}

// figures are those in Prometheus.
type figures struct {
	*sizing.Prometheus
	client kubernetes.Interface
	driver string
}

// Advise gives the advice of `cleave advise` with its defaults.
func (f *figures) Advise(ctx context.Context) (*sizing.Advice, error) {
	a := adviseFlags{driver: f.driver, prometheus: *f.Prometheus, params: defaultAdvice}
	return a.advise(ctx, f.client, nil, time.Now())
}

// run watches the cluster and serves until ctx ends.
func (f *dashboardFlags) run(ctx context.Context) error {
	config, _, err := f.config()
	if err != nil {
		return err
	}
	config.Timeout = 0 // watches do not end
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create a client for the API server at %s: %w", config.Host, err)
	}
	source, err := fleet.NewSource(ctx, fleet.Config{Client: client, Driver: f.driver, Pods: f.pods,
		Version: client.Discovery().ServerVersionWithContext})
	if err != nil {
		return err
	}
	if f.prometheus.URL != "" {
		f.served.Figures = &figures{&f.prometheus, client, f.driver}
	}
	f.served.Driver = f.driver
	server, err := dashboard.New(source, f.served)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.address)
	if err != nil {
		return fmt.Errorf("listen for browsers on --address %s: %w", f.address, err)
	}
	klog.FromContext(ctx).Info("Serving the dashboard", "url", "http://"+listener.Addr().String()+"/", "driver", f.driver)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	wg.Go(func() { source.Run(ctx) })
	return server.Serve(ctx, listener)
}
