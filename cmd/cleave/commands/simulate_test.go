// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/tools/simulation"
)

// smallWorkload is one for a node of hgx-h100.
const smallWorkload = "duration: 2h\npods: [{name: small, deviceClassName: mig-1g.10gb.cleave.dev, running: 3, lifetime: 1h}]\n"

func TestSimulate_Output(t *testing.T) {
	file := writeFile(t, "small.yaml", smallWorkload)
	for form, want := range map[string]string{"table": "1 nodes of hgx-h100, 8 GPUs", "svg": "<svg ", "json": `"nodeModel": "hgx-h100"`} {
		got := cleave(t, "simulate", "-w", file, "-o", form, "--ascii")
		if got.code != cli.ExitOK || !strings.Contains(got.stdout, want) {
			t.Fatalf("%s: exit code %d: %s, got %.300s, want %q", form, got.code, got.stderr, got.stdout, want)
		}
		if form != "json" {
			continue
		}
		var report simulation.Report
		if err := json.Unmarshal([]byte(got.stdout), &report); err != nil || len(report.Results) != 3 || report.Results[1].Requests == 0 {
			t.Errorf("report %+v: %v", report, err)
		}
	}
}

// Shares are packed here, whatever the policy says of them: it is said.
func TestSimulate_SpreadShares(t *testing.T) {
	workload := writeFile(t, "small.yaml", "duration: 2h\npods: [{name: small, deviceClassName: timeslice.cleave.dev, running: 3, lifetime: 1h}]\n")
	for rule, want := range map[string]bool{
		"timeSlice: {shares: 4}":                                             false,
		"timeSlice: {shares: 4, placement: spread}":                          true,
		"tiers: [timeSlice, mps], mps: {placement: pack}":                    false,
		"mig: {share: [{profile: 3g.40gb, timeSlice: {}}]}":                  false,
		"mig: {share: [{profile: 3g.40gb, timeSlice: {placement: spread}}]}": true,
	} {
		got := cleave(t, "simulate", "-w", workload, "--policy", writeFile(t, "default.yaml",
			"apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: default}\nrules: [{"+rule+"}]\n"))
		if got.code != cli.ExitOK || strings.Contains(got.stderr, "placement: spread") != want {
			t.Errorf("%s: got code %d, %q, want a note about spread shares: %t", rule, got.code, got.stderr, want)
		}
	}
}
