// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// inspectFlags of `cleave inspect`.
type inspectFlags struct {
	slicesFlags
	pluginsDir  string
	format      string
	mpsSocket   string
	fromCluster string
	clients     clientFlags
	ascii       bool
	repack      bool
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
			"With --repack it advises which pods to restart so that whole GPUs become free.\n\n" +
			"In the plugin's pod it needs no flags: it takes the plugin's from the environment. Offers follow the plugin's\n" +
			"active policy, unless --policy or --policy-name is given.",
		Example: "  cleave inspect\n" +
			"  cleave inspect --driver-root /run/nvidia/driver -o json\n" +
			"  cleave inspect --from-cluster\n" +
			"  cleave inspect --from-cluster gpu-node-1\n" +
			"  cleave inspect --from-cluster --repack\n" +
			"  cleave inspect --node-model hgx-h100",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.nodes(cmd, args); err != nil {
				return &usageError{err}
			}
			if err := f.fromPlugin(cmd.Flags(), os.Getenv); err != nil {
				return err
			}
			if err := f.check(cmd.Flags()); err != nil {
				return &usageError{err}
			}
			if f.repack {
				return f.advise(cmd.Context(), cmd.OutOrStdout())
			}
			if f.fromCluster == allNodes {
				return f.fleet(cmd.Context(), cmd.OutOrStdout())
			}
			view, err := f.view(cmd.Context())
			if err != nil {
				return err
			}
			if f.format == "json" {
				return printJSON(cmd.OutOrStdout(), view)
			}
			return view.Print(cmd.OutOrStdout(), inspect.Options{
				ASCII: f.ascii || !hasUTF8(os.Getenv), Width: terminalWidth(cmd.OutOrStdout(), os.Getenv), Wide: f.format == "wide",
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&f.format, "output", "o", "table", "table, wide (with UUIDs and every shape) or json")
	flags.BoolVar(&f.ascii, "ascii", false, "draw with ASCII characters; the default unless the locale is UTF-8")
	flags.StringVar(&f.fromCluster, "from-cluster", "",
		"show this `node`, or without a name all nodes, from the API server instead of this machine")
	flags.Lookup("from-cluster").NoOptDefVal = allNodes
	flags.BoolVar(&f.repack, "repack", false,
		"with --from-cluster: pods whose restart frees whole GPUs, the fewest pods first, and where they would fit; nothing is changed")
	f.clients.add(flags, " for --from-cluster")
	f.addHardware(flags)
	flags.StringVar(&f.pluginsDir, "kubelet-plugins-dir", kubeletplugin.KubeletPluginsDir,
		"the kubelet's plugins directory, which contains the plugin's records")
	flags.StringVar(&f.mpsSocket, "mps-socket", mps.DefaultSocket, "socket of cleave mps-supervisor; empty for none")
	return cmd
}

// ofPlugin are the flags shared with the plugin, which its DaemonSet sets in the environment of the container.
var ofPlugin = []string{
	"driver-name", "driver-root", "container-driver-root", "nvml-library", "sysfs", "cgroup-root", "kubelet-plugins-dir", "mps-socket",
}

// fromPlugin sets flags from the environment, so that inspect needs none in the plugin's container. The command line takes
// precedence: with another source than this machine no hardware flag is set, with another driver root none about the driver.
func (f *inspectFlags) fromPlugin(flags *pflag.FlagSet, lookup func(string) string) error {
	taken := ofPlugin
	switch {
	case flags.Changed("from-cluster") || flags.Changed("node-model"):
		taken = []string{"driver-name"}
	case flags.Changed("driver-root"):
		taken = slices.DeleteFunc(slices.Clone(taken),
			func(name string) bool { return name == "container-driver-root" || name == "nvml-library" })
	}
	return flagsFromEnvironment(flags, func(variable string) string {
		if !slices.ContainsFunc(taken, func(name string) bool { return environmentName(name) == variable }) {
			return ""
		}
		return lookup(variable)
	})
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
	}
	return noArgs(cmd, args)
}

// forCluster are the flags that are valid with --from-cluster.
var forCluster = []string{"output", "ascii", "from-cluster", "kubeconfig", "context", "driver-name", "repack", "help"}

// check validates the flags.
func (f *inspectFlags) check(flags *pflag.FlagSet) error {
	if !slices.Contains([]string{"table", "wide", "json"}, f.format) {
		return fmt.Errorf("--output %q is not one of table, wide, json", f.format)
	}
	if !flags.Changed("from-cluster") {
		if f.clients != (clientFlags{}) {
			return errors.New("--kubeconfig and --context are for --from-cluster, which is not set")
		}
		if f.repack {
			return errors.New("--repack is for --from-cluster, which is not set")
		}
		f.output = "table"
		return f.validate()
	}
	if f.nodeName = f.fromCluster; f.fromCluster == allNodes {
		f.nodeName = "all"
	}
	var errs []error
	if f.fromCluster == "" {
		errs = append(errs, errors.New("--from-cluster is empty: give it the name of a node"))
	}
	if f.repack && f.fromCluster != allNodes {
		errs = append(errs, fmt.Errorf("--repack is about all nodes: leave out %q", f.fromCluster))
	}
	flags.Visit(func(flag *pflag.Flag) {
		if !slices.Contains(forCluster, flag.Name) {
			errs = append(errs, fmt.Errorf("--%s has no effect with --from-cluster, which reads no machine", flag.Name))
		}
	})
	if f.output = "table"; len(errs) == 0 {
		errs = append(errs, f.validate())
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
		return viewNode(ctx, client, f.fromCluster, f.driverName)
	}
	hardware, err := f.hardware(ctx)
	if err != nil {
		return nil, err
	}
	view := inspect.OfMachine(*hardware)
	view.Driver, view.Policy = f.driverName, f.policyName
	if f.model != "" {
		view.Source, view.Node = inspect.Model, f.model
	}
	return view, nil
}

// hardware reads the GPUs, existing partitions and the plugin's records.
func (f *inspectFlags) hardware(ctx context.Context) (*inspect.Hardware, error) {
	h := &inspect.Hardware{Partitions: map[gpu.PCIAddress][]gpu.Partition{}}
	if f.model == "" {
		if err := f.records(h); err != nil {
			return nil, err
		}
		f.policy.active = filepath.Join(f.pluginsDir, f.driverName, policy.ActiveFile)
	}
	session, node, err := f.offered(ctx, func(session machine) (policy.Means, error) {
		for i := range session.Node().GPUs {
			g := &session.Node().GPUs[i]
			parts, err := session.Partitions(ctx, g)
			if err != nil {
				h.Problems = append(h.Problems, fmt.Errorf("GPU%d: its partitions are unknown: %w", g.Index, err))
			}
			h.Partitions[g.PCI] = parts
		}
		return policy.Means{MPS: f.noMPS(ctx), Allocated: records.AllocatedOf(h.Records), Partitions: h.Unclaimed}, ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	h.Node = node
	return h, session.Close()
}

// records reads the plugin's records, of which there are none before its first run. Without them, allocated partitions would
// appear unmanaged.
func (f *inspectFlags) records(h *inspect.Hardware) error {
	dir := filepath.Join(f.pluginsDir, f.driverName)
	if _, err := os.Stat(filepath.Join(dir, "claims")); errors.Is(err, fs.ErrNotExist) {
		h.NoRecords = filepath.Join(dir, "claims")
		return nil
	}
	var corrupt, more []error
	var err error
	if h.Records, corrupt, err = records.List(store.Disk{}, filepath.Join(dir, "claims")); err == nil {
		h.Layouts, more, err = records.ListLayouts(store.Disk{}, filepath.Join(dir, "layouts"))
	}
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w: run as root", err)
	}
	if err != nil {
		return err
	}
	for _, err := range append(corrupt, more...) {
		h.Problems = append(h.Problems, fmt.Errorf("a record is corrupt, and its allocation is shown as unmanaged: %w", err))
	}
	return nil
}

// inspectTimeout bounds the wait for the MPS supervisor.
const inspectTimeout = 2 * time.Second

// noMPS is why no MPS server can start; nil if a supervisor answers, and for a model.
func (f *inspectFlags) noMPS(ctx context.Context) error {
	if f.model != "" {
		return nil
	}
	if f.mpsSocket == "" {
		return errors.New("--mps-socket is empty")
	}
	client, err := mps.Dial(f.mpsSocket)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	return errors.Join(client.Available(ctx), client.Close())
}

// hasUTF8 reports whether the locale is UTF-8 (POSIX: LC_ALL overrides LC_CTYPE, which overrides LANG).
func hasUTF8(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := getenv(name); v != "" {
			v = strings.ToLower(strings.ReplaceAll(v, "-", ""))
			return strings.Contains(v, "utf8")
		}
	}
	return false
}

// terminalWidth is the width of the output terminal, else $COLUMNS; 0 if neither is known.
func terminalWidth(w io.Writer, getenv func(string) string) int {
	if file, ok := w.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
			return int(size.Col)
		}
	}
	width, err := strconv.Atoi(getenv("COLUMNS"))
	if err != nil || width < 0 {
		return 0
	}
	return width
}
