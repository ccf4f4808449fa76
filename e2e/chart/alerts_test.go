// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

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
		{"test", "rules", "testdata/alerts_test.yaml", "testdata/opencost_test.yaml", "testdata/metrics_test.yaml"},
	} {
		if out, err := exec.CommandContext(ctx, promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// TestMetrics_DocumentedQueries: the queries that promtool asks in metrics_test.yaml are those of the page.
func TestMetrics_DocumentedQueries(t *testing.T) {
	var file struct {
		Tests []struct {
			Queries []struct {
				Expr string `json:"expr"`
			} `json:"promql_expr_test"`
		} `json:"tests"`
	}
	must(t, yaml.Unmarshal(readFile(t, "testdata/metrics_test.yaml"), &file))
	page, queries := strings.Join(strings.Fields(string(readFile(t, source+"/docs/metrics.md"))), " "), 0
	for _, test := range file.Tests {
		for _, q := range test.Queries {
			queries++
			if !strings.Contains(page, strings.TrimSpace(q.Expr)) {
				t.Errorf("the page has no query %s", q.Expr)
			}
		}
	}
	if queries == 0 {
		t.Error("there are no queries")
	}
}
