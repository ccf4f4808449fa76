// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// list is nvidia-smi -L.
func (s *smi) list(devices []*sim.Device) error {
	st, err := s.node.Status()
	if err != nil {
		return err
	}
	for _, d := range devices {
		g := st.GPUs[d.Number()]
		if g.Lost {
			fmt.Fprintf(stdout, "Unable to determine the device handle for GPU%d: %s: GPU is lost.\n", g.Index, g.PCI)
			continue
		}
		fmt.Fprintf(stdout, "GPU %d: %s (UUID: %s)\n", g.Index, g.Product, g.UUID)
		for i, m := range partitions(&g) {
			fmt.Fprintf(stdout, "  MIG %-12s Device %2d: (UUID: %s)\n", m.Profile, i, m.UUID)
		}
		for _, p := range s.visible {
			if p.GPU == g.Index {
				fmt.Fprintf(stdout, "  MIG GPU instance %d compute instance %d: (UUID: %s)\n", p.GPUInstance, p.ComputeInstance, p.UUID)
			}
		}
	}
	return nil
}

func partitions(g *sim.GPUStatus) []sim.ComputeStatus {
	var all []sim.ComputeStatus
	for _, gi := range g.Instances {
		all = append(all, gi.Compute...)
	}
	return all
}

const rule = "+------------------------------------------------------------------------------------------+"

// table is nvidia-smi without arguments, smaller.
func (s *smi) table(devices []*sim.Device) error {
	st, err := s.node.Status()
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, rule)
	fmt.Fprintf(stdout, "| %-88s |\n", fmt.Sprintf("NVIDIA-SMI %s (simulated)   Driver Version: %s   CUDA Version: %d.%d",
		st.DriverVersion, st.DriverVersion, st.CUDAVersion/1000, st.CUDAVersion%1000/10))
	fmt.Fprintln(stdout, rule)
	fmt.Fprintf(stdout, "| %-3s  %-44s %-12s  %-17s %6s |\n", "GPU", "Name", "Bus-Id", "Memory-Usage", "MIG M.")
	fmt.Fprintln(stdout, rule)
	for _, d := range devices {
		g := st.GPUs[d.Number()]
		if g.Lost {
			fmt.Fprintf(stdout, "| %3d  %-44s %-12s  %-24s |\n", g.Index, g.Product, g.PCI, "GPU is lost")
			continue
		}
		m, err := d.Memory().MemoryV2()
		if err != nil {
			return err
		}
		mode := "N/A"
		if g.MIGCapable {
			mode = map[bool]string{true: "on", false: "off"}[g.MIG]
		}
		fmt.Fprintf(stdout, "| %3d  %-44s %-12s  %17s %6s |\n", g.Index, g.Product, g.PCI, fmt.Sprintf("%d/%dMiB", m.Used>>20, m.Total>>20), mode)
		for _, p := range partitions(&g) {
			fmt.Fprintf(stdout, "|        MIG %-20s %-56s |\n", p.Profile, p.UUID)
		}
		for _, c := range g.Clients {
			fmt.Fprintf(stdout, "|        process %-10d %-62s |\n", c.PID, c.Name)
		}
	}
	fmt.Fprintln(stdout, rule)
	return nil
}
