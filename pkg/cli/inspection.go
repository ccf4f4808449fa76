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

// Inspection selects the input of inspect, a machine or a node model, and its output format.
type Inspection struct {
	Machine
	// Format is table, wide or json.
	Format string

	ascii      bool
	pluginsDir string
	mpsSocket  string
	// metricsAddress is the plugin's; empty to leave out what claims use.
	metricsAddress string
}

// AddOutput adds the flags of the output.
func (f *Inspection) AddOutput(flags *pflag.FlagSet) {
	flags.StringVarP(&f.Format, "output", "o", "table", "table, wide (with UUIDs and every shape), json or yaml")
	flags.BoolVar(&f.ascii, "ascii", false, "draw with ASCII characters; the default unless the locale is UTF-8")
}

// AddSource adds the flags of the input, including a node model if models is set.
func (f *Inspection) AddSource(flags *pflag.FlagSet, models bool) {
	if models {
		f.AddNode(flags)
	} else {
		f.addMachine(flags)
	}
	f.Policy.Add(flags)
	flags.StringVar(&f.pluginsDir, "kubelet-plugins-dir", kubeletplugin.KubeletPluginsDir,
		"the kubelet's plugins directory, which contains the plugin's records")
	flags.StringVar(&f.mpsSocket, "mps-socket", mps.DefaultSocket, "socket of cleave-node mps-supervisor; empty for none")
	flags.StringVar(&f.metricsAddress, "metrics-address", "",
		"address of the plugin's metrics on this machine, to show what claims use of their devices; empty to leave it out")
}

// CheckFormat checks the output format.
func (f *Inspection) CheckFormat() error {
	if !slices.Contains([]string{"table", "wide", "json", "yaml"}, f.Format) {
		return fmt.Errorf("--output %q is not one of table, wide, json, yaml", f.Format)
	}
	return nil
}

// ofPlugin are the flags shared with the plugin, which its DaemonSet sets in the environment of the container.
var ofPlugin = []string{
	"driver-name", "driver-root", "container-driver-root", "nvml-library", "sysfs", "cgroup-root", "kubelet-plugins-dir", "mps-socket",
	"metrics-address",
}

// FromPlugin sets flags from the environment, so that inspect needs none in the plugin's container. The command line takes
// precedence: with another source than this machine no hardware flag is set, with another driver root none about the driver.
func (f *Inspection) FromPlugin(flags *pflag.FlagSet, lookup func(string) string) error {
	taken := ofPlugin
	switch {
	case flags.Changed("from-cluster") || flags.Changed("node-model"):
		taken = []string{"driver-name"}
	case flags.Changed("driver-root"):
		taken = slices.DeleteFunc(slices.Clone(taken),
			func(name string) bool { return name == "container-driver-root" || name == "nvml-library" })
	}
	return FlagsFromEnvironment(flags, func(variable string) string {
		if !slices.ContainsFunc(taken, func(name string) bool { return environmentName(name) == variable }) {
			return ""
		}
		return lookup(variable)
	})
}

// View reads the machine or the model.
func (f *Inspection) View(ctx context.Context) (*inspect.View, error) {
	hardware, err := f.hardware(ctx)
	if err != nil {
		return nil, err
	}
	view := inspect.OfMachine(*hardware)
	view.Driver, view.Policy = f.DriverName, f.AppliedPolicy
	if f.Model != "" {
		view.Source, view.Node = inspect.Model, f.Model
	}
	return view, nil
}

// Print shows a view.
func (f *Inspection) Print(w io.Writer, view *inspect.View) error {
	if f.Structured() {
		return PrintAs(w, f.Format, view)
	}
	return view.Print(w, f.Options(w))
}

// Structured reports whether the output is for programs.
func (f *Inspection) Structured() bool { return f.Format == "json" || f.Format == "yaml" }

// Options are those for people who read the output.
func (f *Inspection) Options(w io.Writer) inspect.Options {
	return inspect.Options{ASCII: f.ascii || !HasUTF8(os.Getenv), Width: terminalWidth(w, os.Getenv), Wide: f.Format == "wide"}
}

// hardware reads the GPUs, existing partitions and the plugin's records.
func (f *Inspection) hardware(ctx context.Context) (*inspect.Hardware, error) {
	h := &inspect.Hardware{Partitions: map[gpu.PCIAddress][]gpu.Partition{}}
	if f.Model == "" {
		if err := f.records(h); err != nil {
			return nil, err
		}
		if f.metricsAddress != "" {
			var err error
			if h.Used, err = f.used(ctx); err != nil {
				h.Problems = append(h.Problems, fmt.Errorf("what claims use is not known: the plugin's metrics cannot be read: %w", err))
			}
		}
		f.Policy.Active = filepath.Join(f.pluginsDir, f.DriverName, policy.ActiveFile)
	}
	session, node, err := f.Offered(ctx, func(session Session) (policy.Capabilities, error) {
		for i := range session.Node().GPUs {
			g := &session.Node().GPUs[i]
			parts, err := session.Partitions(ctx, g)
			if err != nil {
				h.Problems = append(h.Problems, fmt.Errorf("GPU%d: its partitions are unknown: %w", g.Index, err))
			}
			h.Partitions[g.PCI] = parts
		}
		return policy.Capabilities{MPS: f.noMPS(ctx), Allocated: records.AllocatedOf(h.Records), Partitions: h.Unclaimed}, ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	h.Node = node
	return h, session.Close()
}

// records reads the plugin's records, of which there are none before its first run. Without them, allocated partitions would
// appear unmanaged.
func (f *Inspection) records(h *inspect.Hardware) error {
	dir := filepath.Join(f.pluginsDir, records.SharedDir)
	claims := filepath.Join(dir, records.ClaimsDir)
	if _, err := os.Stat(claims); errors.Is(err, fs.ErrNotExist) {
		h.NoRecords = claims
		return nil
	}
	var corrupt, more []error
	var err error
	if h.Records, corrupt, err = records.List(store.Disk{}, claims); err == nil {
		h.Layouts, more, err = records.ListLayouts(store.Disk{}, filepath.Join(dir, records.LayoutsDir))
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
func (f *Inspection) noMPS(ctx context.Context) error {
	if f.Model != "" {
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

// HasUTF8 reports whether the locale is UTF-8 (POSIX: LC_ALL overrides LC_CTYPE, which overrides LANG).
func HasUTF8(getenv func(string) string) bool {
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
