// SPDX-License-Identifier: Apache-2.0

package realgpu

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// TestRelease_Uninstalled is the last test: nothing of Cleave is left.
func TestRelease_Uninstalled(t *testing.T) {
	ctx, b := onGPU(t, 2*time.Minute)
	if _, err := b.Helm(ctx, "", "uninstall", "cleave", "--wait"); err != nil {
		t.Fatal(err)
	}
	// Helm waits for the DaemonSets; their pods end after them.
	err := workload.Until(ctx, "all of Cleave to be gone", func(context.Context) (bool, string, error) {
		specs, err := os.ReadDir(b.Cluster.CDIDir())
		if err != nil {
			return false, "", err
		}
		left := map[string][]int{}
		for _, name := range []string{"nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "cleave-node"} {
			if found := pids(t, name); len(found) > 0 {
				left[name] = found
			}
		}
		return len(specs)+len(left) == 0, fmt.Sprintf("CDI specs: %v; processes: %v", specs, left), nil
	})
	if err != nil {
		t.Error(err)
	}
}
