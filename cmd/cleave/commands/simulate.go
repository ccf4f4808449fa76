// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/deployments/manifests"
	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
	"github.com/cleave-dra/cleave/pkg/tools/simulation"
)

// simulateFlags of `cleave simulate`.
type simulateFlags struct {
	cli.Machine
	workload   string
	nodes      int
	seed       uint64
	strategies []string
	format     string
	ascii      bool
}

func newSimulate() *cobra.Command {
	f := &simulateFlags{}
	cmd := &cobra.Command{
		Use:   "simulate --workload FILE",
		Short: "Replay arriving and leaving pods on a pool of nodes, by strategy",
		Long: "simulate places pods on a simulated pool of equal nodes and compares strategies: default is kube-scheduler in its\n" +
			"default configuration, pack and spread are those of cleave-scheduler. Devices are chosen by the scheduler's own\n" +
			"allocator, from what nodes of the model publish under a policy. It shows what is rejected, how many GPUs stay\n" +
			"whole, and fragmentation over time. A pod without a place is dropped.\n\n" +
			"docs/simulate.md describes the workload file and what is modelled. Node models are\n" +
			strings.Join(models.Names(), ", ") + ".",
		Example: "  cleave simulate --nodes 200 --node-model hgx-h100 --workload workload.yaml --seed 1\n" +
			"  cleave simulate --nodes 200 --node-model hgx-h100 --workload workload.yaml -o svg > picture.svg\n" +
			"  cleave simulate --nodes 20 --node-model dgx-a100 --policy policies/ --policy-name inference --workload workload.yaml",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return cli.UsageError(err)
			}
			report, err := f.run(cmd.Context(), cmd.InOrStdin(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return f.print(cmd.OutOrStdout(), report)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&f.workload, "workload", "w", "", "file with the pods that arrive; - for standard input")
	flags.IntVar(&f.nodes, "nodes", 1, "number of nodes")
	flags.StringVar(&f.Model, "node-model", "hgx-h100", "model of the nodes")
	flags.Uint64Var(&f.seed, "seed", 1, "seed of random times; the same seed gives the same result")
	flags.StringSliceVar(&f.strategies, "strategies", nil, "strategies to compare: "+strings.Join(simulation.Strategies(), ", ")+
		"; empty for those that suit the workload")
	f.Policy.Add(flags)
	flags.BoolVar(&f.WithoutMPS, "without-mps", false, "assume that no cleave-node mps-supervisor runs on the nodes")
	flags.StringVarP(&f.format, "output", "o", "table", "table, svg or json")
	flags.BoolVar(&f.ascii, "ascii", false, "draw with ASCII characters; the default unless the locale is UTF-8")
	return cmd
}

// check validates the flags.
func (f *simulateFlags) check() error {
	var errs []error
	if !slices.Contains([]string{"table", "svg", "json"}, f.format) {
		errs = append(errs, fmt.Errorf("--output %q is not one of table, svg, json", f.format))
	}
	if f.workload == "" {
		errs = append(errs, errors.New("--workload is empty: give it a file, such as one of deployments/examples/workloads"))
	}
	if f.nodes < 1 || f.nodes > simulation.MaxNodes {
		errs = append(errs, fmt.Errorf("--nodes %d is not in 1 to %d", f.nodes, simulation.MaxNodes))
	}
	for i, s := range f.strategies {
		if !slices.Contains(simulation.Strategies(), s) || slices.Contains(f.strategies[:i], s) {
			errs = append(errs, fmt.Errorf("--strategies: %q is unknown or there twice: use %s", s, strings.Join(simulation.Strategies(), ", ")))
		}
	}
	if f.Model == "" {
		errs = append(errs, errors.New("--node-model is empty"))
	}
	f.DriverName = v1alpha1.Group
	return errors.Join(append(errs, f.Validate())...)
}

func (f *simulateFlags) run(ctx context.Context, stdin io.Reader, notes io.Writer) (*simulation.Report, error) {
	workload, err := readWorkload(stdin, f.workload)
	if err != nil {
		return nil, cli.UsageError(err)
	}
	node, err := f.Inventory(ctx)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(node.Offers, func(o policy.Offer) bool { return o.Spreads() }) {
		fmt.Fprintln(notes, "cleave: the policy has placement: spread, which is not simulated: shares are packed here, and on real nodes "+
			"fewer GPUs stay whole")
	}
	classes, err := manifests.Classes()
	if err != nil {
		return nil, err
	}
	pool := simulation.Pool{Model: f.Model, Nodes: f.nodes, Node: node, Driver: f.DriverName, Classes: classes}
	strategies := f.strategies
	if len(strategies) == 0 {
		strategies = workload.Strategies()
	}
	return simulation.Run(ctx, pool, workload, strategies, f.seed)
}

func readWorkload(stdin io.Reader, path string) (*simulation.Workload, error) {
	data, err := readInput(stdin, path)
	if err != nil {
		return nil, err
	}
	w, err := simulation.Decode(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return w, nil
}

func (f *simulateFlags) print(w io.Writer, report *simulation.Report) error {
	switch f.format {
	case "json":
		return cli.PrintJSON(w, report)
	case "svg":
		return report.SVG(w, strings.TrimSuffix(filepath.Base(f.workload), filepath.Ext(f.workload)))
	default:
		return report.Print(w, f.ascii || !cli.HasUTF8(os.Getenv))
	}
}
