// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// kubectlPrefix begins the names of kubectl's plugins: as kubectl-cleave in the PATH, the program is "kubectl cleave".
// https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/
const kubectlPrefix = "kubectl-"

// onNode are the commands that run on a node or in a pod, which nobody starts by kubectl.
var onNode = []string{"kubelet-plugin", "mps-supervisor", "webhook", "nvml-probe"}

// asPlugin makes the commands those of a kubectl plugin: usage and examples have its name.
func asPlugin(root *cobra.Command) {
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl cleave"}
	for _, cmd := range root.Commands() {
		cmd.Hidden = cmd.Hidden || slices.Contains(onNode, cmd.Name())
		cmd.Example = strings.ReplaceAll(cmd.Example, "  cleave ", "  kubectl cleave ")
	}
}

// isPlugin reports whether the commands are those of a kubectl plugin.
func isPlugin(root *cobra.Command) bool {
	return root.Annotations[cobra.CommandDisplayNameAnnotation] != ""
}
