// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/pkg/driver/nvml"
)

// NewNVMLProbe is the command that probes a management library in a child process, because a process cannot unload one that
// fails.
func NewNVMLProbe() *cobra.Command {
	return &cobra.Command{
		Use:    nvml.ProbeCommand + " PATH",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE:   func(_ *cobra.Command, args []string) error { return nvml.InitLibrary(args[0]) },
	}
}
