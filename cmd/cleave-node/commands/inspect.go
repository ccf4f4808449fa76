// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/pkg/cli"
)

func newInspect() *cobra.Command {
	f := &cli.Inspection{}
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "Show this node's GPUs: allocations, partitions, topology",
		Long: "inspect shows the GPUs of this machine: what is allocated to claims and what is free, existing partitions, and the\n" +
			"topology, from the GPUs themselves and the plugin's records of claims. It changes nothing.\n\n" +
			"In the plugin's pod it needs no flags: it takes the plugin's from the environment. Offers follow the plugin's\n" +
			"active policy, unless --policy or --policy-name is given. cleave inspect shows any node of a cluster.",
		Example: "  cleave-node inspect\n" +
			"  cleave-node inspect --driver-root /run/nvidia/driver -o json",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.FromPlugin(cmd.Flags(), os.Getenv); err != nil {
				return err
			}
			if err := f.CheckFormat(); err != nil {
				return cli.UsageError(err)
			}
			if err := f.Validate(); err != nil {
				return cli.UsageError(err)
			}
			view, err := f.View(cmd.Context())
			if err != nil {
				return err
			}
			return f.Print(cmd.OutOrStdout(), view)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.AddOutput(flags)
	f.AddSource(flags, false)
	return cmd
}
