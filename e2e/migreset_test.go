// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// The steps of docs/troubleshooting.md for boards that change their MIG mode with a reset: while the plugin has the GPU open, nvidia-smi
// can neither change the mode nor reset the GPU; once the node's label has made it release the driver, it can.
func TestMIGMode_A30(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t)
	n := s.newPlainNode(ctx, nil)
	n.sim(ctx, "create", "--node", "a30")
	s.must(n.Start(ctx))
	n.waitOffered(ctx, 2)

	if out, code := n.smi(ctx, "-i", "0", "-mig", "1"); code != 0 || !strings.Contains(out, "pending enable state") {
		t.Fatalf("nvidia-smi -mig 1 with the plugin running: exit code %d\n%s", code, out)
	}
	if out, code := n.smi(ctx, "-i", "0", "--gpu-reset"); code != 255 || !strings.Contains(out, "could not be reset") {
		t.Fatalf("nvidia-smi --gpu-reset with the plugin running: exit code %d\n%s", code, out)
	}

	n.label(ctx, v1alpha1.ReleaseDriverLabel, "true")
	s.eventually(ctx, "the plugin to release the driver", func(ctx context.Context) (bool, string, error) {
		state := fmt.Sprint(n.Readiness(ctx))
		return strings.Contains(state, "release-driver=true"), state, nil
	})
	s.eventually(ctx, "nvidia-smi to enable MIG mode", func(ctx context.Context) (bool, string, error) {
		out, code := n.smi(ctx, "-i", "0", "-mig", "1")
		return code == 0 && strings.Contains(out, "Enabled MIG Mode for GPU"), out, nil
	})
	s.must(env.client.LabelNode(ctx, n.name, v1alpha1.ReleaseDriverLabel, nil))
	n.waitOffered(ctx, 1)
	s.eventually(ctx, "partitions of the GPU in MIG mode", func(ctx context.Context) (bool, string, error) {
		for _, d := range s.published.devices(ctx, n.name) {
			if strings.Contains(d.Name, "-mig-") {
				return true, "", nil
			}
		}
		return false, "none", nil
	})
}
