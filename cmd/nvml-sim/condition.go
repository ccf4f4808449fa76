// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// conditionFlags are the flags of fault that say where a GPU is and how far its links and its fabric are, and whether the
// node is in confidential computing mode and has a Fabric Manager. What they set stays until it is ended.
type conditionFlags struct {
	absent, linksDown      bool
	fabric, virtualization string
	confidential, manager  string
}

func (f *conditionFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&f.absent, "absent", false, "take the GPU out of the node")
	c.Flags().BoolVar(&f.linksDown, "links-down", false, "take the NVLinks of the GPU down")
	c.Flags().StringVar(&f.fabric, "fabric", "",
		"`state` of the GPU's registration with its NVLink fabric: "+strings.Join(sim.FabricStates(), ", "))
	c.Flags().StringVar(&f.virtualization, "virtualization", "",
		"virtualization `mode` of the GPU: "+strings.Join(sim.VirtualizationModes(), ", "))
	c.Flags().StringVar(&f.confidential, "confidential-computing", "",
		"confidential computing `mode` of the node: "+strings.Join(sim.ConfidentialModes(), ", "))
	c.Flags().StringVar(&f.manager, "fabric-manager", "", "whether Fabric Manager runs: on, `off`")
}

// setNode applies the flag that is about all GPUs, and reports whether it was given.
func (f *conditionFlags) setNode(n *sim.Node) (given bool, err error) {
	if f.manager != "" {
		on, err := choice("--fabric-manager", f.manager, []string{"off", "on"})
		if err != nil {
			return true, err
		}
		return true, n.Hardware().SetFabricManager(on == 1)
	}
	if f.confidential == "" {
		return false, nil
	}
	mode, err := choice("--confidential-computing", f.confidential, sim.ConfidentialModes())
	if err != nil {
		return true, err
	}
	return true, n.Hardware().SetConfidential(mode)
}

// any reports whether one of the flags about a GPU was given.
func (f *conditionFlags) any() bool {
	return f.absent || f.linksDown || f.fabric != "" || f.virtualization != ""
}

// set applies the flags that were given, the fabric's state for so many calls, or until it is ended if times is zero.
func (f *conditionFlags) set(n *sim.Node, index, times int) error {
	if times < 0 {
		return usagef("--times is not negative")
	}
	fabric, err := choice("--fabric", f.fabric, sim.FabricStates())
	if err != nil {
		return err
	}
	mode, err := choice("--virtualization", f.virtualization, sim.VirtualizationModes())
	if err != nil {
		return err
	}
	if f.fabric != "" {
		if err := n.Hardware().SetFabricState(index, fabric, times); err != nil {
			return err
		}
	}
	if f.virtualization != "" {
		if err := n.Hardware().SetVirtualization(index, mode); err != nil {
			return err
		}
	}
	if f.linksDown {
		if err := n.Hardware().SetLinks(index, false); err != nil {
			return err
		}
	}
	if f.absent {
		return n.Hardware().SetAbsent(index, true)
	}
	return nil
}

// choice is the place of a flag's value among those there are; the first where the flag was not given.
func choice(flag, value string, of []string) (int, error) {
	if value == "" {
		return 0, nil
	}
	i := slices.Index(of, value)
	if i < 0 {
		return 0, usagef("unknown %s %q: want one of %s", flag, value, strings.Join(of, ", "))
	}
	return i, nil
}
