// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Cleave never changes the mode of a GPU that needs a reset for it and is passed through, and must not promise to.
func TestApply_PassThroughWhenIdle(t *testing.T) {
	for board, wants := range map[string]string{"dgx-a100": "reboot this virtual machine", "hgx-h100": ""} {
		n := model(t, board)
		n.GPUs = n.GPUs[:1]
		n.GPUs[0].Virtualization = gpu.PassThrough
		o := Apply(policyOf(t, "{tiers: [mig], mig: {modeChange: whenIdle}}"), n, Capabilities{}).Offers[0]
		if !strings.Contains(o.NoPartitions, wants) || (o.NoPartitions == "") != (wants == "") || o.WantsMIG != nil {
			t.Errorf("%s: no partitions: %q, wants MIG mode %v; want %q", board, o.NoPartitions, o.WantsMIG, wants)
		}
	}
}
