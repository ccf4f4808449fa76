// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/pkg/sim"
)

func newModels() *cobra.Command {
	return &cobra.Command{
		Use:   "models",
		Short: "List the node models",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, name := range sim.NodeModels() {
				fmt.Fprintf(w, "%s\t%s\n", name, sim.ModelDescription(name))
			}
			return w.Flush()
		},
	}
}

type createFlags struct {
	root, model, library, seed, driver string
	force, noDeviceNodes               bool
	devRoot                            string
	flat, noControlNodes, noModprobe   bool
	libc, passThrough                  bool
	firstMinor                         int
}

func newCreate() *cobra.Command {
	var f createFlags
	c := &cobra.Command{
		Use:   "create --node MODEL --root DIR",
		Short: "Make a simulated node",
		Long: `Make a simulated node: a driver root with libraries, nvidia-smi, MPS, device files, and stand-ins for /proc and /sys.

The directory has to be empty, or to hold a simulated node that --force may replace. libnvidia-ml.so.1 is taken from the
directory of this program. Device files need root; --no-device-nodes leaves them out.`,
		Example: "  nvml-sim create --node hgx-h100 --root /tmp/h100",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return create(c, &f)
		},
	}
	c.Flags().StringVar(&f.model, "node", "", "`model` of the node, one of: "+strings.Join(sim.NodeModels(), ", "))
	rootFlag(c, &f.root)
	c.Flags().BoolVar(&f.force, "force", false, "replace the node that is there already")
	c.Flags().BoolVar(&f.noDeviceNodes, "no-device-nodes", false, "make no device files, so that it works without root")
	c.Flags().StringVar(&f.devRoot, "dev-root", "",
		"`directory` below whose dev device files are made; the node's own has no dev then, as on GKE")
	c.Flags().BoolVar(&f.flat, "flat", false, "put libraries into lib64 and programs into bin, as on GKE")
	c.Flags().BoolVar(&f.noControlNodes, "no-control-nodes", false,
		"leave nvidia-uvm unloaded and /dev/nvidiactl and /dev/nvidia-uvm out until nvidia-modprobe runs")
	c.Flags().BoolVar(&f.noModprobe, "no-modprobe", false, "leave nvidia-modprobe out")
	c.Flags().BoolVar(&f.libc, "libc", false, "put the C library that nvidia-smi needs below the root, as driver containers have it")
	c.Flags().BoolVar(&f.passThrough, "passthrough", false, "make it a virtual machine that GPUs are passed through to")
	c.Flags().IntVar(&f.firstMinor, "first-minor", 0, "add `N` to the minor numbers of GPUs, so that nodes on one machine differ in them")
	c.Flags().StringVar(&f.library, "library", "", "`path` of libnvidia-ml.so.1 (default: next to this program)")
	c.Flags().StringVar(&f.seed, "seed", "", "any `text`; nodes with different seeds have different UUIDs")
	c.Flags().StringVar(&f.driver, "driver-version", "", "driver `version`, instead of the model's")
	return c
}

func create(c *cobra.Command, f *createFlags) error {
	if err := needRoot(f.root); err != nil {
		return err
	}
	if !slices.Contains(sim.NodeModels(), f.model) {
		return usagef("no node model named %q: want one of %s", f.model, strings.Join(sim.NodeModels(), ", "))
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	library := f.library
	if library == "" {
		library = filepath.Join(filepath.Dir(self), "libnvidia-ml.so.1")
	}
	if _, err := os.Stat(library); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no library at %s: build it with \"make sim\", or name it with --library", library)
	}
	opts := []sim.Option{sim.WithLibrary(library), sim.WithExecutable(self), sim.WithSeed(f.seed), sim.WithDriverVersion(f.driver),
		sim.WithFirstMinor(f.firstMinor)}
	more, err := f.layout(self)
	if err != nil {
		return err
	}
	opts = append(opts, more...)
	if f.force {
		opts = append(opts, sim.WithForce())
	}
	if f.noDeviceNodes {
		opts = append(opts, sim.WithoutDeviceNodes())
	}
	n, err := sim.Create(f.root, f.model, opts...)
	if errors.Is(err, sim.ErrExists) {
		return fmt.Errorf("%w: --force replaces it", err)
	}
	if err != nil {
		return err
	}
	st, err := n.Status()
	if err != nil {
		return err
	}
	fmt.Fprintf(c.OutOrStdout(), "%s: %d x %s under %s\n", st.Model, len(st.GPUs), st.GPUs[0].Product, n.Root())
	return nil
}

func newRemove() *cobra.Command {
	var root string
	c := &cobra.Command{
		Use:   "remove --root DIR",
		Short: "Take a simulated node away",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := needRoot(root); err != nil {
				return err
			}
			return sim.Remove(root)
		},
	}
	rootFlag(c, &root)
	return c
}
