// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/e2e/cluster"
)

// monitoringTools builds Prometheus and promtool, or finds them built.
func monitoringTools(t *testing.T, ctx context.Context) string {
	t.Helper()
	dir, err := cluster.BuildPrometheus(ctx, tests.Options)
	must(t, err)
	return dir
}

func TestAlerts_Promtool(t *testing.T) {
	ctx := tests.Bound(t, toolsTimeout)
	promtool := filepath.Join(monitoringTools(t, ctx), "promtool")
	for _, args := range [][]string{
		{"check", "rules", "--lint=all", "--lint-fatal", chartDir + "/files/alerts.yaml", chartDir + "/files/opencost.yaml"},
		{"test", "rules", "testdata/alerts_test.yaml", "testdata/opencost_test.yaml"},
	} {
		if out, err := exec.CommandContext(ctx, promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
