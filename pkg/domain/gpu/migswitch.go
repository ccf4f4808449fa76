// SPDX-License-Identifier: Apache-2.0

package gpu

import "fmt"

// SwitchMIG describes how an admin switches the MIG mode of a GPU that needs a reset for that. The driver itself resets the GPU
// when the mode is set while nothing has the GPU open. That includes the plugin, which has to release the driver first. A guest
// leaves the reset to its reboot ("you may need to reboot the VM", MIG user guide, Getting Started). gpu is the GPU's name in the
// text. The label is api/v1alpha1's, which this package does not import.
func SwitchMIG(g *GPU, gpu string, on bool) string {
	mode := 0
	if on {
		mode = 1
	}
	if g.Virtualization == PassThrough {
		return fmt.Sprintf("drain the node, run nvidia-smi -i %s -mig %d, and reboot this virtual machine, which may be unable to reset "+
			"the GPU (docs/mig.md, Virtual machines)", gpu, mode)
	}
	return fmt.Sprintf("drain the node, label it gpu.cleave.dev/release-driver=true, run nvidia-smi -i %s -mig %d, remove the label "+
		"(docs/troubleshooting.md, MIG mode by hand), or have the policy say mig.modeChange: whenIdle", gpu, mode)
}
