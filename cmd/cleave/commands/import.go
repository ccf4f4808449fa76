// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/tools/migrate"
)

// importFlags of `cleave import`.
type importFlags struct {
	name       string
	outputDir  string
	driverName string
	// defaultName is the configuration that nodes without a label have.
	defaultName string
}

func newImport() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Convert files of NVIDIA's device plugin or MIG manager to node policies and DeviceClasses",
		Long: "import reads the files that configure a cluster's GPUs now. It prints node policies that offer the GPUs in the\n" +
			"same way, and DeviceClasses for existing pods. Differences are listed on stderr and in leading comments. See\n" +
			"docs/migrate.md.",
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.UsageError(errors.New("name the kind of file: device-plugin or mig-parted"))
			}
			return cli.UsageError(fmt.Errorf("unknown kind of file %q: choose device-plugin or mig-parted", args[0]))
		},
	}
	cmd.AddCommand(
		newImportOf("device-plugin", importDevicePlugin,
			"Convert configuration files of NVIDIA's device plugin to node policies and DeviceClasses",
			"name of the policy (default: default; with several files or keys of a ConfigMap, the name of each without its extension)",
			"nvidia.com/device-plugin.config",
			"  cleave import device-plugin config.yaml\n"+
				"  cleave import device-plugin inference.yaml notebooks.yaml --output-dir cleave\n"+
				"  kubectl get configmap -n gpu-operator device-plugin-config -o yaml | cleave import device-plugin - --output-dir cleave"),
		newImportOf("mig-parted", importMIGParted, "Convert the mig-configs of mig-parted or the MIG manager to node policies and DeviceClasses",
			"the only mig-config to import (default: all)", "nvidia.com/mig.config",
			"  cleave import mig-parted config.yaml --output-dir cleave\n"+
				"  kubectl get configmap -n gpu-operator default-mig-parted-config -o yaml | cleave import mig-parted - --name all-balanced"),
	)
	return cmd
}

// importer converts a file, or a key of a ConfigMap, which may be one of several.
type importer func(part migrate.Part, options migrate.Options, several bool) (*migrate.Import, error)

// importDevicePlugin names the policies of several files, or keys, after them.
func importDevicePlugin(part migrate.Part, options migrate.Options, several bool) (*migrate.Import, error) {
	if several {
		base := cmp.Or(part.Name, filepath.Base(part.File))
		options.Name = strings.TrimSuffix(base, filepath.Ext(base))
	}
	return migrate.DevicePlugin(part.Data, options)
}

// importMIGParted uses the names in the file.
func importMIGParted(part migrate.Part, options migrate.Options, _ bool) (*migrate.Import, error) {
	return migrate.MIGParted(part.Data, options)
}

// newImportOf makes a command whose policies nodes select by a label of NVIDIA's component until they have Cleave's.
func newImportOf(kind string, read importer, short, name, label, examples string) *cobra.Command {
	f := &importFlags{}
	cmd := &cobra.Command{
		Use:   kind + " FILE...",
		Short: short,
		Long: short + ".\nA file can be a ConfigMap that has such files as data, also beside other objects, which are passed over.\n" +
			"- is the standard input.\n\n" +
			"Nodes select a policy by the label " + v1alpha1.PolicyLabel + ". With the chart value policyLabels they do so by\n" +
			label + ", too, whose values are the names of the policies.",
		Example: examples,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.UsageError(errors.New("name a file, or - for the standard input"))
			}
			if len(args) > 1 && f.name != "" {
				return cli.UsageError(errors.New("--name goes with one file"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := nodeslices.CheckDriverName(f.driverName); err != nil {
				return cli.UsageError(err)
			}
			imported, passedOver, err := f.read(cmd.InOrStdin(), args, kind, read)
			if err != nil {
				return err
			}
			for _, p := range passedOver {
				fmt.Fprintf(cmd.ErrOrStderr(), "cleave: passed over: %s\n", p)
			}
			for _, n := range imported.Notes {
				fmt.Fprintf(cmd.ErrOrStderr(), "cleave: %s\n", n)
			}
			if f.outputDir != "" {
				return f.write(imported)
			}
			return printImport(cmd.OutOrStdout(), imported)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.name, "name", "", name)
	flags.StringVar(&f.defaultName, "default", "",
		"configuration that nodes without a label have, which is written as policy default, too (default: that of a ClusterPolicy in the files)")
	flags.StringVar(&f.outputDir, "output-dir", "",
		"write policies/NAME.yaml, deviceclasses.yaml and, where needed, admission.yaml to this directory instead of printing them")
	flags.StringVar(&f.driverName, "driver-name", v1alpha1.Group, "name of the DRA driver that the DeviceClasses select")
	return cmd
}

// read imports the files one by one and merges the results. The error has a line for each problem.
func (f *importFlags) read(stdin io.Reader, files []string, kind string, read importer) (all *migrate.Import, passedOver []string,
	err error) {
	var parts []migrate.Part
	var problems []error
	defaultName, strategy := "", ""
	for _, file := range files {
		data, err := readInput(stdin, file)
		var found *migrate.Parts
		if err == nil {
			found, err = migrate.PartsOf(file, kind, data)
		}
		if err != nil {
			problems = append(problems, err)
			continue
		}
		parts = append(parts, found.Parts...)
		for _, p := range found.PassedOver {
			passedOver = append(passedOver, file+": "+p)
		}
		defaultName, strategy = cmp.Or(defaultName, found.Defaults[kind]), cmp.Or(strategy, found.MIGStrategy)
	}
	if len(parts) > 1 && f.name != "" {
		return nil, nil, cli.UsageError(fmt.Errorf("--name goes with one file, and there are %d: the keys of a ConfigMap count", len(parts)))
	}
	for _, part := range parts {
		options := migrate.Options{File: part.File, Name: f.name, MIGStrategy: strategy, Driver: f.driverName}
		imported, err := read(part, options, len(parts) > 1)
		if err == nil && all != nil {
			err = all.Add(imported)
		} else if all == nil {
			all = imported
		}
		if err != nil {
			problems = append(problems, v1alpha1.ProblemsOf(fmt.Errorf("%s: %w", part.File, err))...)
		}
	}
	if err := errors.Join(problems...); err != nil {
		return nil, nil, err
	}
	if f.name != "" || len(all.Policies) == 1 && all.Policies[0].Metadata.Name == v1alpha1.DefaultPolicy {
		defaultName = "" // one configuration of several, or a file of its own
	}
	if err := all.SetDefault(cmp.Or(f.defaultName, defaultName)); err != nil {
		return nil, nil, fmt.Errorf("choose a default: %w", err)
	}
	return all, passedOver, nil
}

// maxInput bounds a file in bytes, like the formats.
const maxInput = 1 << 20

// readInput reads a file, or the standard input for -, up to one byte beyond the limit.
func readInput(stdin io.Reader, file string) ([]byte, error) {
	in, what := stdin, "the standard input"
	if file != "-" {
		f, err := os.Open(filepath.Clean(file))
		if err != nil {
			return nil, fmt.Errorf("read a file: %w", err)
		}
		defer f.Close()
		in, what = f, file
	}
	data, err := io.ReadAll(io.LimitReader(in, maxInput+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return data, nil
}

// printImport writes one stream: the notes as comments, the policies, the classes.
func printImport(w io.Writer, imported *migrate.Import) error {
	if err := imported.WriteComments(w, nil); err != nil {
		return err
	}
	for i, p := range imported.Policies {
		if i > 0 {
			if _, err := io.WriteString(w, "---\n"); err != nil {
				return fmt.Errorf("print the policies: %w", err)
			}
		}
		if err := imported.WritePolicy(w, p); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(w, "---\n"); err != nil {
		return fmt.Errorf("print the DeviceClasses: %w", err)
	}
	if err := imported.WriteClasses(w); err != nil || len(imported.SingleShares()) == 0 {
		return err
	}
	if _, err := io.WriteString(w, "---\n"); err != nil {
		return fmt.Errorf("print the ValidatingAdmissionPolicy: %w", err)
	}
	return imported.WriteAdmission(w)
}

// write writes a file per policy, for a ConfigMap, and one with all classes, for kubectl apply.
func (f *importFlags) write(imported *migrate.Import) error {
	dir := filepath.Join(f.outputDir, "policies")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("create the output directory: %w", err)
	}
	for _, p := range imported.Policies {
		var out bytes.Buffer
		if err := errors.Join(imported.WriteComments(&out, p), imported.WritePolicy(&out, p)); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, p.Metadata.Name+".yaml"), out.Bytes(), 0o644); err != nil {
			return fmt.Errorf("write policy %s: %w", p.Metadata.Name, err)
		}
	}
	var classes, refusals bytes.Buffer
	err := errors.Join(imported.WriteComments(&classes, nil), imported.WriteClasses(&classes), imported.WriteAdmission(&refusals))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(f.outputDir, "deviceclasses.yaml"), classes.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write the DeviceClasses: %w", err)
	}
	if refusals.Len() > 0 {
		if err := os.WriteFile(filepath.Join(f.outputDir, "admission.yaml"), refusals.Bytes(), 0o644); err != nil {
			return fmt.Errorf("write the ValidatingAdmissionPolicy: %w", err)
		}
	}
	return nil
}
