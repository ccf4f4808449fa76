// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// The steps of docs/mig.md for boards that change their MIG mode with a reset: while the plugin has the GPU open, nvidia-smi
// can neither change the mode nor reset the GPU; once the node's label has made it release the driver, it can.
func TestMIGMode_A30(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t, nil)
	n := s.newPlainNode(ctx, nil)
	s.sim(ctx, n, "create", "--node", "a30")
	s.must(n.Start(ctx))
	s.offers(ctx, n, 2)

	if out, code := s.smi(ctx, n, "-i", "0", "-mig", "1"); code != 0 || !strings.Contains(out, "pending enable state") {
		t.Fatalf("nvidia-smi -mig 1 with the plugin running: exit code %d\n%s", code, out)
	}
	if out, code := s.smi(ctx, n, "-i", "0", "--gpu-reset"); code != 255 || !strings.Contains(out, "could not be reset") {
		t.Fatalf("nvidia-smi --gpu-reset with the plugin running: exit code %d\n%s", code, out)
	}

	s.labelPlainNode(ctx, n, `"true"`)
	s.eventually(ctx, "the plugin to release the driver", func(ctx context.Context) (bool, string, error) {
		state := fmt.Sprint(n.Readiness(ctx))
		return strings.Contains(state, "release-driver=true"), state, nil
	})
	if out, code := s.smi(ctx, n, "-i", "0", "-mig", "1"); code != 0 || !strings.Contains(out, "Enabled MIG Mode for GPU") {
		t.Fatalf("nvidia-smi -mig 1 with the driver released: exit code %d\n%s", code, out)
	}
	s.labelPlainNode(ctx, n, "null")
	s.offers(ctx, n, 1)
	s.eventually(ctx, "partitions of the GPU in MIG mode", func(ctx context.Context) (bool, string, error) {
		for _, d := range devicesOf(s.slices(ctx, n.name)) {
			if strings.Contains(d.Name, "-mig-") {
				return true, "", nil
			}
		}
		return false, "none", nil
	})
}

// labelPlainNode sets the label that makes a node's plugin release the driver, to a value in JSON.
func (s *space) labelPlainNode(ctx context.Context, n *plainNode, value string) {
	s.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, v1alpha1.ReleaseDriverLabel, value)
	_, err := env.kube.CoreV1().Nodes().Patch(ctx, n.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	s.must(err)
}

// smi runs nvidia-smi of a simulated node.
func (s *space) smi(ctx context.Context, n *plainNode, args ...string) (out string, code int) {
	s.Helper()
	var b bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(n.Root(), "usr/bin/nvidia-smi"), args...)
	cmd.Stdout, cmd.Stderr = &b, &b
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return b.String(), exit.ExitCode()
	}
	s.must(err)
	return b.String(), 0
}
