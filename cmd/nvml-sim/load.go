// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/mps"
)

// newLoad is the command that makes processes busy.
func newLoad() *cobra.Command {
	var gpu int
	var client sim.Client
	var load sim.Load
	var memory string
	c := onRoot("load --gpu N --pid N --sm PERCENT", "Let a process keep a GPU or a partition busy",
		`Let a process keep a GPU or a partition busy, from now until another load or its end. One that does not use the GPU
yet begins to. Counters show it as the driver's do: GPM of the GPU or the GPU instance from two samples (Hopper and
later), utilization by processes of the last 72 seconds and utilization.gpu (not in MIG mode), power and energy.`, func(n *sim.Node) error {
			if memory != "" {
				var err error
				if client.Memory, err = parseMemory(memory); err != nil {
					return usageError{err}
				}
			}
			client.Load = &load
			return n.Clients().SetLoad(gpu, client)
		})
	c.Example = "  nvml-sim load --root /tmp/h100 --gpu 0 --pid 4711 --sm 40 --memory 6Gi"
	c.Flags().IntVar(&gpu, "gpu", 0, "`index` of the GPU")
	c.Flags().IntVar(&client.PID, "pid", 0, "`PID` of the process")
	c.Flags().IntVar(&load.SM, "sm", 0, "`percent` of time in which it uses all multiprocessors of the GPU or partition")
	c.Flags().IntVar(&load.DRAM, "dram", 0, "`percent` of the memory bandwidth it uses")
	c.Flags().StringVar(&memory, "memory", "", "memory it uses, such as 6Gi or 512Mi; without it, as before")
	c.Flags().StringVar(&client.Name, "name", "python", "`name` of a process that is new to the GPU")
	c.Flags().IntVar(&client.GPUInstance, "gi", -1, "GPU instance `ID` a new one is in")
	c.Flags().IntVar(&client.ComputeInstance, "ci", -1, "compute instance `ID` a new one is in")
	return c
}

// parseMemory reads a size such as 6Gi.
func parseMemory(text string) (uint64, error) { return mps.ParseSize(strings.TrimSuffix(text, "i")) }
