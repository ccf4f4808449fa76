// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// inspectFlags of `cleave inspect`.
type inspectFlags struct {
	cli.Inspection
	fromCluster string
	clients     clientFlags
}

func newInspect() *cobra.Command { return newInspectCommand(&inspectFlags{}) }

func newInspectCommand(f *inspectFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "Show a node's GPUs: allocations, partitions, topology and slices",
		Long: "inspect shows a node's GPUs: what is allocated to claims and what is free, existing partitions, and the topology.\n" +
			"It changes nothing. It reads\n\n" +
			"  - this machine: the GPUs themselves and the plugin's records of claims;\n" +
			"  - a node model (--node-model), or a simulated node (--driver-root and --sysfs under its root);\n" +
			"  - any node, or all of them in a line each, from the ResourceSlices and ResourceClaims of the cluster\n" +
			"    (--from-cluster). As a plugin of kubectl, that is the default.\n\n" +
			"In the plugin's pod it needs no flags: it takes the plugin's from the environment. Offers follow the plugin's\n" +
			"active policy, unless --policy or --policy-name is given.",
		Example: "  cleave inspect\n" +
			"  cleave inspect --driver-root /run/nvidia/driver -o json\n" +
			"  cleave inspect --from-cluster\n" +
			"  cleave inspect --from-cluster gpu-node-1\n" +
			"  cleave inspect --node-model hgx-h100",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.nodes(cmd, args); err != nil {
				return cli.UsageError(err)
			}
			if err := f.FromPlugin(cmd.Flags(), os.Getenv); err != nil {
				return err
			}
			if err := f.check(cmd.Flags()); err != nil {
				return cli.UsageError(err)
			}
			if f.fromCluster == allNodes {
				return f.fleet(cmd.Context(), cmd.OutOrStdout())
			}
			view, err := f.view(cmd.Context())
			if err != nil {
				return err
			}
			return f.Print(cmd.OutOrStdout(), view)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.AddOutput(flags)
	flags.StringVar(&f.fromCluster, "from-cluster", "",
		"show this `node`, or without a name all nodes, from the API server instead of this machine")
	flags.Lookup("from-cluster").NoOptDefVal = allNodes
	f.clients.add(flags, " for --from-cluster")
	f.AddSource(flags, true)
	return cmd
}

// allNodes is the value of --from-cluster without a node.
const allNodes = "*"

// nodes takes the node of "--from-cluster NODE" from the arguments. kubectl's plugin reads the cluster unless flags name another source.
func (f *inspectFlags) nodes(cmd *cobra.Command, args []string) error {
	flags := cmd.Flags()
	if isPlugin(cmd.Root()) && !slices.ContainsFunc([]string{"from-cluster", "node-model", "driver-root", "nvml-library"}, flags.Changed) {
		if err := flags.Set("from-cluster", allNodes); err != nil {
			return err
		}
	}
	if len(args) > 0 && f.fromCluster == allNodes {
		f.fromCluster, args = args[0], args[1:]
	} else if len(args) == 1 && f.fromCluster == "" {
		return fmt.Errorf("unexpected argument %q: for a node of the cluster, %s --from-cluster %[1]s", args[0], cmd.CommandPath())
	}
	return cli.NoArgs(cmd, args)
}

// forCluster are the flags that are valid with --from-cluster.
var forCluster = []string{"output", "ascii", "from-cluster", "kubeconfig", "context", "driver-name", "help"}

// check validates the flags.
func (f *inspectFlags) check(flags *pflag.FlagSet) error {
	if err := f.CheckFormat(); err != nil {
		return err
	}
	if !flags.Changed("from-cluster") {
		if f.clients != (clientFlags{}) {
			return errors.New("--kubeconfig and --context are for --from-cluster, which is not set")
		}
		return f.Validate()
	}
	if f.NodeName = f.fromCluster; f.fromCluster == allNodes {
		f.NodeName = "all"
	}
	var errs []error
	if f.fromCluster == "" {
		errs = append(errs, errors.New("--from-cluster is empty: give it the name of a node"))
	}
	flags.Visit(func(flag *pflag.Flag) {
		if !slices.Contains(forCluster, flag.Name) {
			errs = append(errs, fmt.Errorf("--%s has no effect with --from-cluster, which reads no machine", flag.Name))
		}
	})
	if len(errs) == 0 {
		errs = append(errs, f.Validate())
	}
	return errors.Join(errs...)
}

// view reads the machine, the model or the cluster.
func (f *inspectFlags) view(ctx context.Context) (*inspect.View, error) {
	if f.fromCluster != "" {
		client, _, err := f.clients.client()
		if err != nil {
			return nil, err
		}
		return viewNode(ctx, client, f.fromCluster, f.DriverName)
	}
	return f.View(ctx)
}
