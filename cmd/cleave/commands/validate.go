// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/admission"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
	"github.com/cleave-dra/cleave/pkg/tools/validation"
)

// validateFlags of `cleave validate`.
type validateFlags struct {
	cli.Machine
	files    []string
	thisNode bool
}

func newValidate() *cobra.Command {
	f := &validateFlags{}
	cmd := &cobra.Command{
		Use:   "validate -f FILE",
		Short: "Check node policies, claims and DeviceClasses without a cluster",
		Long: "validate checks NodePolicies, also in ConfigMaps, and ResourceClaims, ResourceClaimTemplates and DeviceClasses\n" +
			"(resource.k8s.io/v1): fields and values, parameters of the driver, and whether CEL selectors compile. Other\n" +
			"objects are skipped. It reports the same errors as the plugin, the webhook and the API server.\n\n" +
			"With --node-model or --this-node, it also checks policies against the boards of a node (profiles and layouts),\n" +
			"and claims against the devices that the node would publish: does a device satisfy each request. Classes are\n" +
			"those of the files and those that come with Cleave. Node models are\n" +
			strings.Join(models.Names(), ", ") + ".\n\n" +
			"Each problem is one line with file, object and field. Exit codes: 0 ok, 1 problems found, 2 usage.",
		Example: "  cleave validate -f policies/\n" +
			"  cleave validate -f policies/ --policy-name training --node-model hgx-h100 -f claims.yaml\n" +
			"  helm template . | cleave validate -f -",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.UsageError(fmt.Errorf("unexpected argument %q: name files with -f %s", args[0], args[0]))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd.Flags()); err != nil {
				return cli.UsageError(err)
			}
			return f.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringArrayVarP(&f.files, "file", "f", nil, "file or directory to check, - for the standard input; repeatable")
	flags.BoolVar(&f.thisNode, "this-node", false, "check the files against the GPUs of this machine")
	f.AddNode(flags)
	f.Policy.AddFormat(flags, "file")
	f.Policy.AddName(flags)
	flags.BoolVar(&f.WithoutMPS, "without-mps", false, "assume that no cleave-node mps-supervisor runs on the node")
	return cmd
}

func (f *validateFlags) check(flags *pflag.FlagSet) error {
	if len(f.files) == 0 {
		return errors.New("there is nothing to check: name files or directories with -f")
	}
	if f.thisNode && f.Model != "" {
		return errors.New("--this-node and --node-model exclude each other")
	}
	for _, name := range []string{"nvml-library", "driver-root", "container-driver-root", "sysfs", "cgroup-root"} {
		if flags.Changed(name) && !f.thisNode {
			return fmt.Errorf("--%s is about this machine: add --this-node", name)
		}
	}
	if !f.thisNode && f.Model == "" && flags.Changed("policy-name") {
		return errors.New("--policy-name selects the policy of a node: add --node-model or --this-node")
	}
	return nodeslices.CheckDriverName(f.DriverName)
}

func (f *validateFlags) run(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	o := validation.Options{Rules: admission.DefaultRules(), PolicyName: f.Policy.Name, Format: f.Policy.Format, Stdin: stdin}
	o.Rules.Driver = f.DriverName
	if f.thisNode || f.Model != "" {
		node, err := f.node(ctx)
		if err != nil {
			return err
		}
		o.Node = node
	}
	files, err := validation.Files(ctx, f.files, o)
	if err != nil {
		return cli.UsageError(err)
	}
	problems := 0
	for _, file := range files {
		problems += len(file.Problems)
		if err := printFile(stdout, file); err != nil {
			return err
		}
	}
	switch problems {
	case 0:
		return nil
	case 1:
		return errors.New("1 problem found")
	default:
		return fmt.Errorf("%d problems found", problems)
	}
}

// node reads the machine or model.
func (f *validateFlags) node(ctx context.Context) (*validation.Node, error) {
	session, err := f.Open(ctx)
	if err != nil {
		return nil, err
	}
	n := &validation.Node{Words: "this node", GPUs: session.Node()}
	if f.Model != "" {
		n.Words, n.Model = "a node of model "+f.Model, true
	}
	if f.WithoutMPS {
		n.Capabilities.MPS = errors.New("--without-mps")
	}
	limited := map[gpu.PCIAddress]bool{}
	for i := range n.GPUs.GPUs {
		pci := n.GPUs.GPUs[i].PCI
		limits, err := session.LimitsMemory(ctx, pci, f.CgroupRoot)
		limited[pci] = limits && err == nil
	}
	n.Capabilities = policy.Capabilities{MPS: n.Capabilities.MPS, CgroupMemory: func(g *gpu.GPU) bool { return limited[g.PCI] }}
	return n, session.Close()
}

// printFile writes the problems of a file, or that it is ok.
func printFile(w io.Writer, file *validation.File) error {
	lines := append([]string{}, file.Problems...)
	for _, note := range file.Notes {
		lines = append(lines, "note: "+note)
	}
	passed := ""
	if len(file.PassedOver) > 0 {
		passed = "passed over: " + counted(file.PassedOver)
	}
	switch {
	case len(file.Problems) > 0:
	case len(file.Checked) == 0:
		lines = append(lines, file.Path+": nothing to check: "+passed)
	case passed != "":
		lines = append(lines, file.Path+": ok: "+strings.Join(file.Checked, ", ")+"; "+passed)
	default:
		lines = append(lines, file.Path+": ok: "+strings.Join(file.Checked, ", "))
	}
	if _, err := fmt.Fprintln(w, strings.Join(lines, "\n")); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}

// counted summarises objects by kind: "Pod ×7, Namespace".
func counted(objects []string) string {
	var kinds []string
	count := map[string]int{}
	for _, o := range objects {
		kind, _, _ := strings.Cut(o, " ")
		if count[kind]++; count[kind] == 1 {
			kinds = append(kinds, kind)
		}
	}
	for i, kind := range kinds {
		if count[kind] > 1 {
			kinds[i] = fmt.Sprintf("%s ×%d", kind, count[kind])
		}
	}
	return strings.Join(kinds, ", ")
}
