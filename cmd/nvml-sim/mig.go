// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

func newMIG() *cobra.Command {
	return group("mig", "Partitions: what an administrator would do with nvidia-smi mig", newMIGMode(), newMIGCreate(), newMIGDestroy(),
		showing("list", "List partitions and clients", showPartitions))
}

// onGPU is a command that does one thing to a GPU, in a session.
func onGPU(use, short string, do func(c *cobra.Command, d *sim.Device, args []string) error) *cobra.Command {
	var root string
	var index int
	c := &cobra.Command{Use: use, Short: short}
	c.RunE = func(c *cobra.Command, args []string) error {
		n, err := open(root)
		if err != nil {
			return err
		}
		return session(n, func() error {
			d, err := n.DeviceByIndex(index)
			if err != nil {
				return err
			}
			return do(c, d, args)
		})
	}
	rootFlag(c, &root)
	c.Flags().IntVar(&index, "gpu", 0, "`index` of the GPU")
	return c
}

func newMIGMode() *cobra.Command {
	return onGPU("mode --root DIR --gpu N on|off", "Switch MIG mode", func(c *cobra.Command, d *sim.Device, args []string) error {
		if len(args) != 1 || args[0] != "on" && args[0] != "off" {
			return usagef("want one argument: on or off")
		}
		activation, err := d.MIG().SetMIGMode(args[0] == "on")
		if err != nil {
			return err
		}
		if activation != nil {
			return fmt.Errorf("the mode is not active: %w", activation)
		}
		return nil
	})
}

func newMIGCreate() *cobra.Command {
	var profile string
	var start int
	var bare bool
	c := onGPU("create --root DIR --gpu N --profile PROFILE", "Create a GPU instance, with a compute instance over all of it",
		func(c *cobra.Command, d *sim.Device, args []string) error {
			if len(args) > 0 {
				return noArgs(c, args)
			}
			p, err := findProfile(d, profile)
			if err != nil {
				return err
			}
			gi, err := makeInstance(d, p, start)
			if err != nil {
				return err
			}
			if bare {
				_, err := fmt.Fprintf(c.OutOrStdout(), "GPU instance %d\n", gi.ID())
				return err
			}
			ci, err := gi.CreateComputeInstance(p.Filling().ID)
			if err != nil {
				return err
			}
			uuid, err := sim.MIGDeviceOf(ci).UUID()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "GPU instance %d, compute instance %d: %s\n", gi.ID(), ci.ID(), uuid)
			return err
		})
	c.Flags().StringVar(&profile, "profile", "", "`name` or ID of the profile, such as 1g.10gb or 19")
	c.Flags().IntVar(&start, "start", -1, "placement `unit` to begin at (default: the first that is free)")
	c.Flags().BoolVar(&bare, "no-compute-instance", false, "make no compute instance")
	return c
}

// findProfile finds a profile by name or ID.
func findProfile(d *sim.Device, name string) (*sim.Profile, error) {
	if d.Board().MIG == nil {
		return nil, fmt.Errorf("%s offers no MIG", d.Board().Product)
	}
	var names []string
	for i := range d.Board().MIG.Profiles {
		p := &d.Board().MIG.Profiles[i]
		if name == p.Name || name == strconv.Itoa(p.ID) {
			return p, nil
		}
		names = append(names, fmt.Sprintf("%s (%d)", p.Name, p.ID))
	}
	return nil, usagef("no profile %q on %s: want one of %s", name, d.Board().Product, strings.Join(names, ", "))
}

func makeInstance(d *sim.Device, p *sim.Profile, start int) (*sim.GPUInstance, error) {
	if start < 0 {
		return d.MIG().CreateGPUInstance(p.ID)
	}
	return d.MIG().CreateGPUInstanceWithPlacement(p.ID, gpu.Placement{Start: start, Size: p.Size})
}

func newMIGDestroy() *cobra.Command {
	var id int
	var all bool
	c := onGPU("destroy --root DIR --gpu N --gi ID | --all", "Destroy GPU instances, with their compute instances",
		func(c *cobra.Command, d *sim.Device, args []string) error {
			switch {
			case len(args) > 0:
				return noArgs(c, args)
			case all == (id >= 0):
				return usagef("want --gi ID or --all")
			}
			var errs []error
			for _, gi := range instances(d) {
				if all || gi.ID() == id {
					errs = append(errs, destroy(d, gi))
				}
			}
			if len(errs) == 0 && !all {
				return fmt.Errorf("no GPU instance %d", id)
			}
			return errors.Join(errs...)
		})
	c.Flags().IntVar(&id, "gi", -1, "`ID` of the GPU instance")
	c.Flags().BoolVar(&all, "all", false, "all of them")
	return c
}

// instances lists the GPU instances, profile by profile.
func instances(d *sim.Device) []*sim.GPUInstance {
	var all []*sim.GPUInstance
	if d.Board().MIG == nil {
		return nil
	}
	for i := range d.Board().MIG.Profiles {
		found, err := d.MIG().GPUInstances(d.Board().MIG.Profiles[i].ID)
		if err == nil { // outside MIG mode there are none
			all = append(all, found...)
		}
	}
	return all
}

// destroy destroys a GPU instance and its contents.
func destroy(d *sim.Device, gi *sim.GPUInstance) error {
	info, err := gi.Info()
	if err != nil {
		return err
	}
	p, err := findProfile(d, strconv.Itoa(info.ProfileID))
	if err != nil {
		return err
	}
	for _, c := range p.ComputeInstances {
		found, err := gi.ComputeInstances(c.ID)
		if err != nil {
			return err
		}
		for _, ci := range found {
			if err := ci.Destroy(); err != nil {
				return err
			}
		}
	}
	return gi.Destroy()
}
