// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// onRoot is a command that does one thing to a node.
func onRoot(use, short, long string, do func(*sim.Node) error) *cobra.Command {
	var root string
	c := &cobra.Command{
		Use:   use + " --root DIR",
		Short: short,
		Long:  long,
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			n, err := open(root)
			if err != nil {
				return err
			}
			return do(n)
		},
	}
	rootFlag(c, &root)
	return c
}

// showing is a command that writes something of a node's status.
func showing(use, short string, show func(io.Writer, *sim.Status) error) *cobra.Command {
	var out io.Writer
	c := onRoot(use, short, "", func(n *sim.Node) error {
		st, err := n.Status()
		if err != nil {
			return err
		}
		return show(out, st)
	})
	c.PreRun = func(c *cobra.Command, _ []string) { out = c.OutOrStdout() }
	return c
}

// group is a command that has others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  noArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(commands...)
	return c
}

func newReboot() *cobra.Command {
	return onRoot("reboot", "Reboot the node", `Do to the node what a reboot does: a new boot id, partitions and clients gone, lost GPUs back.
The MIG mode is kept where boards keep it (before Hopper), and pending modes become active. Injected faults stay.`,
		func(n *sim.Node) error { return n.Driver().Reboot() })
}

func newDriver() *cobra.Command {
	var force, remake bool
	unload := onRoot("unload", "Take the driver away: calls fail with DRIVER_NOT_LOADED",
		"Refused, as by rmmod, while a process has the driver open. --force takes it away all the same.", func(n *sim.Node) error {
			if force {
				return n.Driver().ForceUnload()
			}
			return n.Driver().Unload()
		})
	unload.Flags().BoolVar(&force, "force", false, "behind the back of those who have the driver open")
	reload := onRoot("reload", "Unload and load the driver behind the back of those who have it open", "", func(n *sim.Node) error {
		return n.Driver().ForceReload(remake)
	})
	reload.Flags().BoolVar(&remake, "remake", false, remakeUsage)
	return group("driver", "Unload, load or reload the kernel driver",
		unload, onRoot("load", "Bring the driver back", "", func(n *sim.Node) error { return n.Driver().Load() }), reload)
}

const remakeUsage = "then make the partitions that were there anew, as another tool would: in the same places, with the same IDs and UUIDs"

func newReset() *cobra.Command {
	gpu := -1
	var force, remake bool
	c := onRoot("reset --gpu N", "Reset a GPU: partitions go, the pending MIG mode becomes the current one",
		"Refused, as by nvidia-smi --gpu-reset, while a process has the GPU open. --force resets it all the same.", func(n *sim.Node) error {
			switch {
			case gpu < 0:
				return usagef("no --gpu: say which GPU")
			case remake && !force:
				return usagef("--remake goes with --force")
			case remake:
				return n.Hardware().ForceRemake(gpu)
			case force:
				return n.Hardware().ForceReset(gpu)
			default:
				return n.Hardware().Reset(gpu)
			}
		})
	c.Flags().IntVar(&gpu, "gpu", -1, "`index` of the GPU")
	c.Flags().BoolVar(&force, "force", false, "behind the back of those who have the GPU open")
	c.Flags().BoolVar(&remake, "remake", false, remakeUsage)
	return c
}

// session does something that needs NVML to be initialised.
func session(n *sim.Node, do func() error) error {
	if err := n.Init(); err != nil {
		return err
	}
	return errors.Join(do(), n.Shutdown())
}

// newHold is a monitoring agent.
func newHold() *cobra.Command {
	var gpu, gi int
	c := onRoot("hold --gpu N [--gi ID]", "Keep a GPU, or a GPU instance, open until a signal comes, as a monitoring agent does",
		"It prints a line once it has it open. No client shows, and the GPU cannot be reset, nor the GPU instance destroyed.",
		func(n *sim.Node) error {
			return session(n, func() error {
				d := n.Device(gpu)
				if d == nil {
					return usagef("no GPU %d", gpu)
				}
				if _, err := d.UUID(); err != nil {
					return err
				}
				if gi >= 0 {
					h, err := n.Clients().Hold("nvml-sim")
					if err != nil {
						return err
					}
					defer func() { _ = h.Close() }()
					if err := h.Leak(gpu, gi); err != nil {
						return err
					}
				}
				ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
				defer stop()
				fmt.Fprintln(stdout, "open")
				<-ctx.Done()
				return nil
			})
		})
	c.Flags().IntVar(&gpu, "gpu", 0, "`index` of the GPU")
	c.Flags().IntVar(&gi, "gi", -1, "`ID` of the GPU instance")
	return c
}

func newClient() *cobra.Command {
	var gpu int
	var client sim.Client
	var mib uint64
	add := onRoot("add --gpu N --pid N", "Let a process use a GPU or a partition", "", func(n *sim.Node) error {
		client.Memory = mib << 20
		return n.Clients().Add(gpu, client)
	})
	add.Flags().StringVar(&client.Name, "name", "python", "`name` of the process")
	add.Flags().Uint64Var(&mib, "memory", 0, "memory it uses, in `MiB`")
	add.Flags().IntVar(&client.GPUInstance, "gi", -1, "GPU instance `ID` it is in")
	add.Flags().IntVar(&client.ComputeInstance, "ci", -1, "compute instance `ID` it is in")
	remove := onRoot("remove --gpu N --pid N", "End the use of a GPU by a process", "", func(n *sim.Node) error {
		return n.Clients().Remove(gpu, client.PID)
	})
	for _, sub := range []*cobra.Command{add, remove} {
		sub.Flags().IntVar(&gpu, "gpu", 0, "`index` of the GPU")
		sub.Flags().IntVar(&client.PID, "pid", 0, "`PID` of the process")
	}
	return group("client", "Let processes use GPUs", add, remove)
}
