// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/tools/simulation"
)

// workloadFile is a file with a workload for one node of hgx-h100.
func workloadFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "small.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const smallWorkload = "duration: 2h\npods: [{name: small, deviceClassName: mig-1g.10gb.cleave.dev, running: 3, lifetime: 1h}]\n"

func TestSimulate_Output(t *testing.T) {
	file := workloadFile(t, smallWorkload)
	for form, want := range map[string]string{"table": "1 nodes of hgx-h100, 8 GPUs", "svg": "<svg ", "json": `"nodeModel": "hgx-h100"`} {
		var out, errs strings.Builder
		if code := cli.Run(t.Context(), New("cleave"), []string{"simulate", "-w", file, "-o", form, "--ascii"}, &out, &errs); code != cli.ExitOK {
			t.Fatalf("%s: exit code %d: %s", form, code, errs.String())
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s: got %.300s, want %q", form, out.String(), want)
		}
		if form != "json" {
			continue
		}
		var report simulation.Report
		if err := json.Unmarshal([]byte(out.String()), &report); err != nil || len(report.Results) != 3 || report.Results[1].Requests == 0 {
			t.Errorf("report %+v: %v", report, err)
		}
	}
}

// Shares are packed here, whatever the policy says of them: it is said.
func TestSimulate_SpreadShares(t *testing.T) {
	workload := workloadFile(t, "duration: 2h\npods: [{name: small, deviceClassName: timeslice.cleave.dev, running: 3, lifetime: 1h}]\n")
	for rule, want := range map[string]bool{
		"timeSlice: {shares: 4}":                                             false,
		"timeSlice: {shares: 4, placement: spread}":                          true,
		"tiers: [timeSlice, mps], mps: {placement: pack}":                    false,
		"mig: {share: [{profile: 3g.40gb, timeSlice: {}}]}":                  false,
		"mig: {share: [{profile: 3g.40gb, timeSlice: {placement: spread}}]}": true,
	} {
		policy := filepath.Join(t.TempDir(), "default.yaml")
		text := "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: default}\nrules: [{" + rule + "}]\n"
		if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, errs strings.Builder
		args := []string{"simulate", "-w", workload, "--policy", policy}
		if code := cli.Run(t.Context(), New("cleave"), args, &out, &errs); code != cli.ExitOK {
			t.Fatalf("%s: exit code %d: %s", rule, code, errs.String())
		}
		if got := strings.Contains(errs.String(), "placement: spread"); got != want {
			t.Errorf("%s: got %q, want a note about spread shares: %t", rule, errs.String(), want)
		}
	}
}

func TestSimulate_Usage(t *testing.T) {
	file := workloadFile(t, smallWorkload)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "--workload is empty"},
		{[]string{"-w", "absent.yaml"}, "no such file"},
		{[]string{"-w", workloadFile(t, "duration: 1h\npods: 3")}, "small.yaml: decode the workload"},
		{[]string{"-w", file, "--nodes", "0"}, "--nodes 0 is not in 1 to 5000"},
		{[]string{"-w", file, "-o", "png"}, `--output "png"`},
		{[]string{"-w", file, "--strategies", "pack,pack"}, `"pack" is unknown or there twice`},
		{[]string{"-w", file, "--strategies", "fast"}, `"fast" is unknown`},
		{[]string{"-w", file, "--node-model", "h42"}, "h42"},
		{[]string{"-w", file, "--policy-name", "absent"}, "absent"},
		{[]string{"-w", file, "now"}, `unexpected argument "now"`},
	} {
		var out, errs strings.Builder
		if code := cli.Run(t.Context(), New("cleave"), append([]string{"simulate"}, tt.args...), &out, &errs); code != cli.ExitUsage || !strings.Contains(errs.String(), tt.want) {
			t.Errorf("%v: exit code %d, %q, want 2 and %q", tt.args, code, errs.String(), tt.want)
		}
	}
}
