// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/pkg/cli"
)

// New is the command line of the program.
func New() *cobra.Command {
	return cli.NewRoot("cleave-node", "Kubernetes DRA driver for NVIDIA GPUs",
		"cleave-node offers the GPUs of a node as devices of Kubernetes Dynamic Resource Allocation, and prepares claims on the\n"+
			"node.", cli.ExitCodes,
		newKubeletPlugin(), newMPSSupervisor(), newWebhook(), newInspect(), cli.NewNVMLProbe())
}
