// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/driver/plugin"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
)

// slicesFlags of `cleave slices`.
type slicesFlags struct {
	library     string
	driverRoot  string
	mountedRoot string // where this process sees driverRoot; empty if at the same path
	model       string
	sysfs       string
	nodeName    string
	driverName  string
	output      string
	cgroupRoot  string
	policy      policyFlags
	withoutMPS  bool
	policyName  string // of the applied policy
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
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.validate(); err != nil {
				return &usageError{err}
			}
			node, err := f.inventory(cmd.Context())
			if err != nil {
				return err
			}
			if f.policyName == policy.BuiltIn && f.policy.file != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "cleave: %s has no policy named %s: this is what a node without the label %s publishes, which offers "+
					"every tier; --policy-name picks one\n",
					f.policy.file, v1alpha1.DefaultPolicy, v1alpha1.PolicyLabel)
			}
			for _, p := range node.Problems {
				fmt.Fprintf(cmd.ErrOrStderr(), "cleave: GPU %d is left out: %v\n", p.Index, p.Err)
			}
			for i := range node.GPUs {
				if why := node.Offers[i].NoPartitions; why != "" {
					fmt.Fprintf(cmd.ErrOrStderr(), "cleave: %s offers no partitions: %s\n", node.GPUs[i].PCI.DeviceName(), why)
				}
			}
			return printSlices(cmd.OutOrStdout(), nodeslices.Objects(node, f.driverName, f.nodeName), f.output)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.addHardware(flags)
	flags.BoolVar(&f.withoutMPS, "without-mps", false, "assume that no cleave mps-supervisor runs on the node")
	flags.StringVar(&f.nodeName, "node-name", "", "name of the node (default: the host's name, or the model's)")
	flags.StringVarP(&f.output, "output", "o", "table", "table, json or yaml")
	return cmd
}

// addHardware adds the flags that select the GPUs and the policy.
func (f *slicesFlags) addHardware(flags *pflag.FlagSet) {
	f.addNode(flags)
	f.policy.add(flags)
}

// addNode adds the flags that select the GPUs.
func (f *slicesFlags) addNode(flags *pflag.FlagSet) {
	flags.StringVar(&f.model, "node-model", "", "read a node of this model instead of this machine")
	addDriver(flags, &f.driverRoot, &f.mountedRoot, &f.library, driverroot.Auto)
	flags.StringVar(&f.sysfs, "sysfs", "/sys", "the node's sysfs")
	flags.StringVar(&f.cgroupRoot, "cgroup-root", "/sys/fs/cgroup", "root of the cgroup v2 hierarchy")
	flags.StringVar(&f.driverName, "driver-name", v1alpha1.Group, "name of the DRA driver")
}

// addDriver adds the flags that locate the NVIDIA driver.
func addDriver(flags *pflag.FlagSet, root, mounted, library *string, defaultRoot string) {
	flags.StringVar(root, "driver-root", defaultRoot,
		"root of the NVIDIA driver's files on the host; auto for the first of / and /run/nvidia/driver that has a driver")
	flags.StringVar(mounted, "container-driver-root", "",
		"where this process sees the driver root, or with --driver-root=auto the host's /; empty if at the same path")
	flags.StringVar(library, "nvml-library", "", "path of libnvidia-ml.so.1; empty to search the driver root")
}

// validate checks the flags without reading hardware, and sets the default of the node's name.
func (f *slicesFlags) validate() error {
	if f.output != "table" && f.output != "json" && f.output != "yaml" {
		return fmt.Errorf("--output %q is not one of table, json, yaml", f.output)
	}
	if f.model != "" && f.library != "" {
		return errors.New("--node-model and --nvml-library exclude each other: a model has its own library")
	}
	if f.nodeName == "" {
		f.nodeName = f.model
	}
	if f.nodeName == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("find the host's name (set --node-name): %w", err)
		}
		f.nodeName = strings.ToLower(host)
	}
	return errors.Join(plugin.CheckNodeName(f.nodeName), plugin.CheckDriverName(f.driverName))
}

// inventory reads the machine or model.
func (f *slicesFlags) inventory(ctx context.Context) (*policy.Node, error) {
	var noMPS error
	if f.withoutMPS {
		noMPS = errors.New("--without-mps")
	}
	session, node, err := f.offered(ctx, func(machine) (policy.Means, error) { return policy.Means{MPS: noMPS}, nil })
	if err != nil {
		return nil, err
	}
	return node, session.Close()
}

// offered reads the machine or model with the offers of its policy.
func (f *slicesFlags) offered(ctx context.Context, look func(machine) (policy.Means, error)) (machine, *policy.Node, error) {
	name, p, err := f.policy.load()
	if err != nil {
		return nil, nil, err
	}
	f.policyName = name
	session, err := f.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	node := session.Node()
	if err := policy.Check(p, node); err != nil {
		return nil, nil, errors.Join(&usageError{fmt.Errorf("policy %q does not fit this node: %w", name, err)}, session.Close())
	}
	if f.model != "" {
		node, _ = policy.InMIGMode(p, node)
	}
	means, err := look(session)
	if err != nil {
		return nil, nil, errors.Join(err, session.Close())
	}
	means.CgroupMemory = func(g *gpu.GPU) bool { return session.LimitsMemory(ctx, g.PCI, f.cgroupRoot) }
	return session, policy.Apply(p, node, means), nil
}

// machine is what is read of a node's GPUs: an NVML session, or a captured inventory.
type machine interface {
	Node() *gpu.Node
	Partitions(ctx context.Context, g *gpu.GPU) ([]gpu.Partition, error)
	LimitsMemory(ctx context.Context, pci gpu.PCIAddress, cgroupRoot string) bool
	Close() error
}

// modelNode is a fresh node of a known model, whose GPUs have no partitions and whose driver limits no memory by cgroup.
type modelNode struct{ inventory *gpu.Node }

func (m modelNode) Node() *gpu.Node { return m.inventory }

func (modelNode) Partitions(context.Context, *gpu.GPU) ([]gpu.Partition, error) { return nil, nil }

func (modelNode) LimitsMemory(context.Context, gpu.PCIAddress, string) bool { return false }

func (modelNode) Close() error { return nil }

func (f *slicesFlags) open(ctx context.Context) (machine, error) {
	if f.model != "" {
		inventory, err := models.Load(f.model)
		if errors.Is(err, models.ErrUnknown) {
			return nil, &usageError{err}
		}
		if err != nil {
			return nil, err
		}
		return modelNode{inventory}, nil
	}
	roots := driverroot.Here(driverroot.Candidates(f.driverRoot, f.mountedRoot))
	session, err := nvml.Open(ctx, nvml.Options{
		DriverRoot: roots[0], OtherRoots: roots[1:], LibraryPath: f.library, Sysfs: os.DirFS(f.sysfs).(fs.ReadLinkFS),
	})
	if err != nil {
		return nil, err // and no machine that holds a nil pointer
	}
	return session, nil
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
	if form == "json" {
		return printJSON(w, out)
	}
	data, err := yaml.Marshal(out)
	if err != nil {
		return fmt.Errorf("encode the slices: %w", err)
	}
	if _, err = w.Write(data); err != nil {
		return fmt.Errorf("print the slices: %w", err)
	}
	return nil
}

// printJSON writes a value as JSON.
func printJSON(w io.Writer, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the output: %w", err)
	}
	if _, err = fmt.Fprintln(w, string(data)); err != nil {
		return fmt.Errorf("print the output: %w", err)
	}
	return nil
}
