// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
)

// slicesFlags of `cleave slices`.
type slicesFlags struct {
	cli.Machine
	output string
}

func newSlices() *cobra.Command {
	f := &slicesFlags{}
	cmd := &cobra.Command{
		Use:   "slices",
		Short: "Print the ResourceSlices a node would publish",
		Long: "slices prints exactly what the plugin would publish, without a cluster: for this machine or for a node model\n" +
			"(" + strings.Join(models.Names(), ", ") + ").\n" +
			"On a model, GPUs whose policy offers only partitions are in MIG mode, which on Ampere an admin must enable.\n\n" +
			"-o json and -o yaml print a v1 List of ResourceSlice objects for kubectl apply.",
		Example: "  cleave slices --node-model hgx-h100\n" +
			"  cleave slices --node-model l40s --policy policy.yaml\n" +
			"  cleave slices --node-model dgx-a100 --policy policies/ --policy-name inference\n" +
			"  cleave slices --node-model hgx-h100 --policy config.yaml --import-format mig-parted --policy-name all-balanced\n" +
			"  cleave slices --node-model hgx-h100 --node-name gpu-node-1 -o yaml | kubectl apply -f -\n" +
			"  cleave slices --driver-root /run/nvidia/driver",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return cli.UsageError(err)
			}
			node, err := f.Inventory(cmd.Context())
			if err != nil {
				return err
			}
			if f.AppliedPolicy == policy.BuiltIn && f.Policy.File != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "cleave: %s has no policy named %s: this is what a node without the label %s publishes, which offers "+
					"every tier; --policy-name picks one\n",
					f.Policy.File, v1alpha1.DefaultPolicy, v1alpha1.PolicyLabel)
			}
			for _, p := range node.Problems {
				fmt.Fprintf(cmd.ErrOrStderr(), "cleave: GPU %d is left out: %v\n", p.Index, p.Err)
			}
			for i := range node.GPUs {
				if why := node.Offers[i].NoPartitions; why != "" {
					fmt.Fprintf(cmd.ErrOrStderr(), "cleave: %s offers no partitions: %s\n", node.GPUs[i].PCI.DeviceName(), why)
				}
			}
			return printSlices(cmd.OutOrStdout(), nodeslices.Objects(node, f.DriverName, f.NodeName), f.output)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.AddHardware(flags)
	flags.BoolVar(&f.WithoutMPS, "without-mps", false, "assume that no cleave-node mps-supervisor runs on the node")
	flags.StringVar(&f.NodeName, "node-name", "", "name of the node (default: the host's name, or the model's)")
	flags.StringVarP(&f.output, "output", "o", "table", "table, json or yaml")
	return cmd
}

// check validates the flags.
func (f *slicesFlags) check() error {
	if f.output != "table" && f.output != "json" && f.output != "yaml" {
		return fmt.Errorf("--output %q is not one of table, json, yaml", f.output)
	}
	return f.Validate()
}

// printSlices writes the list in a format.
func printSlices(w io.Writer, list *resourceapi.ResourceSliceList, form string) error {
	if form == "table" {
		return printTable(w, list)
	}
	out := &metav1.List{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}}
	for i := range list.Items {
		out.Items = append(out.Items, runtime.RawExtension{Object: &list.Items[i]})
	}
	return cli.PrintAs(w, form, out)
}
