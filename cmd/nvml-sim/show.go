// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/pkg/sim"
)

func newShow() *cobra.Command {
	var output string
	c := showing("show", "Show a simulated node: GPUs, partitions, clients, faults", func(out io.Writer, st *sim.Status) error {
		switch output {
		case "table":
			return showTable(out, st)
		case "json":
			e := json.NewEncoder(out)
			e.SetIndent("", "  ")
			return e.Encode(st)
		default:
			return usagef("unknown output %q: want table or json", output)
		}
	})
	c.Flags().StringVarP(&output, "output", "o", "table", "`format`: table or json")
	return c
}

// open opens the node under a directory.
func open(root string) (*sim.Node, error) {
	if err := needRoot(root); err != nil {
		return nil, err
	}
	return sim.Open(root)
}

// showTable writes a table for people.
func showTable(out io.Writer, st *sim.Status) error {
	driver := "driver " + st.DriverVersion
	if st.Unloaded {
		driver += " (unloaded)"
	}
	fmt.Fprintf(out, "%s, %s, boot %s\n\n", st.Model, driver, st.BootID)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "GPU\tMINOR\tPCI\tNUMA\tPRODUCT\tUUID\tMIG\tSTATE")
	for _, g := range st.GPUs {
		fmt.Fprintf(w, "%d\t%d\t%s\t%d\t%s\t%s\t%s\t%s\n", g.Index, g.Minor, g.PCI, g.NUMA, g.Product, g.UUID, g.MIGText(), g.StateText())
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := showPartitions(out, st); err != nil {
		return err
	}
	showModes(out, st)
	for _, f := range st.Faults {
		fmt.Fprintf(out, "fault %s\n", f)
	}
	return nil
}

// showModes writes non-default settings of GPUs and partitions: modes, time slices, memory limits.
func showModes(out io.Writer, st *sim.Status) {
	for _, g := range st.GPUs {
		if g.LinksDown {
			fmt.Fprintf(out, "NVLinks down on GPU %d\n", g.Index)
		}
		if g.Fabric != 0 {
			fmt.Fprintf(out, "fabric %s on GPU %d\n", sim.FabricStateName(g.Fabric), g.Index)
		}
		if g.Virtualization != sim.VirtualizationNone {
			fmt.Fprintf(out, "virtualization %s on GPU %d\n", sim.VirtualizationName(g.Virtualization), g.Index)
		}
		if g.ComputeMode != sim.ModeDefault {
			fmt.Fprintf(out, "compute mode %s on GPU %d\n", sim.ComputeModeName(g.ComputeMode), g.Index)
		}
		if g.TimeSlice != 0 {
			fmt.Fprintf(out, "time slice %s on GPU %d\n", timeSlices[g.TimeSlice], g.Index)
		}
		for _, gi := range g.Instances {
			for _, ci := range gi.Compute {
				if ci.ComputeMode != sim.ModeDefault {
					fmt.Fprintf(out, "compute mode %s on GPU %d GI %d CI %d\n", sim.ComputeModeName(ci.ComputeMode), g.Index, gi.ID, ci.ID)
				}
			}
		}
		for _, l := range g.Limits {
			fmt.Fprintf(out, "memory limits soft %d, hard %s of %s on GPU %d\n", l.Soft, limitText(l.Hard), l.Cgroup, g.Index)
		}
	}
}

// limitText words a hard limit in bytes.
func limitText(bytes uint64) string {
	if bytes == sim.NoMemoryLimit {
		return "none"
	}
	return strconv.FormatUint(bytes, 10)
}

// showPartitions writes the partitions, the clients, and who else has a GPU open.
func showPartitions(out io.Writer, st *sim.Status) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	rows := 0
	row := func(format string, args ...any) {
		if rows == 0 {
			fmt.Fprintln(w, "\nGPU\tGI\tCI\tPROFILE\tPLACEMENT\tUUID")
		}
		rows++
		fmt.Fprintf(w, format, args...)
	}
	for _, g := range st.GPUs {
		for _, i := range g.Instances {
			if len(i.Compute) == 0 {
				row("%d\t%d\t-\t%s\t%d:%d\t-\n", g.Index, i.ID, i.Profile, i.Start, i.Size)
			}
			for _, c := range i.Compute {
				row("%d\t%d\t%d\t%s\t%d:%d\t%s\n", g.Index, i.ID, c.ID, c.Profile, i.Start, i.Size, c.UUID)
			}
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, g := range st.GPUs {
		for _, c := range g.Clients {
			where := fmt.Sprintf("GPU %d", g.Index)
			if c.GPUInstance >= 0 {
				where += fmt.Sprintf(" GI %d CI %d", c.GPUInstance, c.ComputeInstance)
			}
			fmt.Fprintf(out, "client %d (%s) on %s\n", c.PID, c.Name, where)
		}
		for _, open := range g.Sessions {
			fmt.Fprintf(out, "open in %d (%s): GPU %d\n", open.PID, open.Name, g.Index)
		}
	}
	return nil
}
