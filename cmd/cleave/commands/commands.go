// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/pkg/cli"
)

// ExitCodes are those of the program, as help and docs name them.
const ExitCodes = cli.ExitCodes + ", 3 it fits, and yet waits (explain)"

// New returns the command line of the program, by the name under which it was started.
func New(program string) *cobra.Command {
	root := cli.NewRoot("cleave", "GPUs of a Kubernetes cluster, for people",
		"cleave shows and explains the GPUs of a cluster whose nodes run Cleave's DRA driver, repacks them, checks manifests and\n"+
			"policies, and imports and simulates them. What runs on nodes is cleave-node.", ExitCodes,
		newDashboard(), newInspect(), newExplain(), newCordon(), newUncordon(), newRepack(), newAdvise(), newSlices(),
		newSimulate(), newClaim(), newValidate(), newImport(), cli.NewNVMLProbe())
	root.CompletionOptions.HiddenDefaultCmd = false
	if strings.HasPrefix(filepath.Base(program), kubectlPrefix) {
		asPlugin(root)
	}
	return root
}
