// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"strings"

	"github.com/spf13/cobra"
)

// kubectlPrefix begins the names of kubectl's plugins: as kubectl-cleave in the PATH, the program is "kubectl cleave".
// https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/
const kubectlPrefix = "kubectl-"

// asPlugin makes the commands those of a kubectl plugin: usage and examples have its name.
func asPlugin(root *cobra.Command) {
	root.CompletionOptions.HiddenDefaultCmd = true // it completes cleave; kubectl asks plugins in another way
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl cleave"}
	for _, cmd := range root.Commands() {
		cmd.Example = strings.ReplaceAll(cmd.Example, "  cleave ", "  kubectl cleave ")
	}
}

// isPlugin reports whether the commands are those of a kubectl plugin.
func isPlugin(root *cobra.Command) bool {
	return root.Annotations[cobra.CommandDisplayNameAnnotation] != ""
}
