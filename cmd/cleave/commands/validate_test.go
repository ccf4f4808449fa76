// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/golden"
)

const (
	examples = "../../../deployments/examples"
	policies = examples + "/policies"
)

func TestSlices_Layouts(t *testing.T) {
	for _, model := range []string{"a30", "dgx-a100", "hgx-h100", "l40s", "rtx-pro-6000", "t4"} {
		t.Run(model, func(t *testing.T) {
			got := cleave(t, "slices", "--node-model", model, "--policy", "testdata/layouts.yaml")
			if got.code != cli.ExitOK || got.stderr != "" {
				t.Fatalf("got code %d, stderr %q", got.code, got.stderr)
			}
			golden.Check(t, filepath.Join("testdata", "layouts-"+model+".txt"), got.stdout)
		})
	}
}

func TestValidate_Problems(t *testing.T) {
	bad := writeFile(t, "bad.yaml", "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\nrules: [{mps: {shares: 0}, timeSlice: {shares: 0}}]")
	good := writeFile(t, "good.yaml", "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: x}\nrules: [{mig: {layout: {1g.6gb: 4}}}]")
	pods := writeFile(t, "pods.yaml", "apiVersion: v1\nkind: Pod\n---\napiVersion: v1\nkind: Pod\n---\napiVersion: v1\nkind: Namespace\n")
	claim := writeFile(t, "claim.yaml", "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\n"+
		"spec: {devices: {requests: [{name: r, exactly: {deviceClassName: other.example.com}}]}}\n---\napiVersion: v1\nkind: Pod\n")
	lines := func(text ...string) string { return strings.Join(text, "\n") + "\n" }
	tests := map[string]struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		"ok": {[]string{"-f", good, "--file", claim, "-f", pods}, cli.ExitOK, lines(
			good+": ok: NodePolicy x", claim+": ok: ResourceClaim c; passed over: Pod", pods+": nothing to check: passed over: Pod ×2, Namespace"),
			""},
		"problems": {[]string{"-f", bad}, cli.ExitFailed, lines(
			bad+`: policy "default": rules[0].timeSlice.shares: Invalid value: 0: must be 1 to 1000`,
			bad+`: policy "default": rules[0].mps.shares: Invalid value: 0: must be 1 to 60`), "cleave: 2 problems found\n"},
		"on a model": {[]string{"-f", good, "-f", claim, "--node-model", "l40s"}, cli.ExitFailed, lines(
			good+`: policy "x": on a node of model l40s: rules[0].mig: NVIDIA L40S cannot be partitioned: match only GPUs that can be`,
			"note: "+claim+`: ResourceClaim c: spec.devices.requests[0].exactly.deviceClassName: DeviceClass "other.example.com" `+
				"is neither in these files nor one of Cleave's: not checked against a node of model l40s",
			claim+": ok: ResourceClaim c; passed over: Pod"), "cleave: 1 problem found\n"},
		"on a model that fits": {[]string{"-f", good, "--node-model", "a30", "--policy-name", "x"}, cli.ExitOK,
			lines(good + ": ok: NodePolicy x"), ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := cleave(t, append([]string{"validate"}, tt.args...)...)
			if diff := cmp.Diff(outcome{tt.code, tt.stdout, tt.stderr}, got, cmp.AllowUnexported(outcome{})); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSlices_PolicyErrors(t *testing.T) {
	misfit := writeFile(t, "misfit.yaml", "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\nrules: [{mig: {layout: {3g.40gb: 3}}}]")
	for _, command := range []string{"slices", "inspect"} {
		for _, tt := range []struct {
			args []string
			code int
			want string // on stderr if the command fails, else on stdout
		}{
			{[]string{"--policy", policies, "--policy-name", "inference"}, cli.ExitOK, "3g.40gb"},
			{[]string{"--policy", policies}, cli.ExitOK, "timeslice"},
			{[]string{"--policy", policies, "--policy-name", "x"}, cli.ExitUsage,
				`there is no policy "x": choose one of development, existing, inference`},
			{[]string{"--policy", misfit}, cli.ExitUsage,
				`policy "default" does not fit this node: rules[0].mig.layout: 3g.40gb ×3 do not fit ` +
					"an NVIDIA H100 80GB HBM3; free after 3g.40gb ×2: none"},
			{[]string{"--policy", misfit + "x"}, cli.ExitUsage, "misfit.yamlx: no such file"},
		} {
			got := cleave(t, append([]string{command, "--node-model", "hgx-h100"}, tt.args...)...)
			said := got.stderr
			if tt.code == cli.ExitOK {
				said = got.stdout
			}
			if command == "inspect" && tt.want == "timeslice" {
				tt.want = "by policy built-in"
			}
			if builtIn := command == "slices" && len(tt.args) == 2 &&
				tt.code == cli.ExitOK; builtIn != strings.Contains(got.stderr, "has no policy named default") {
				t.Errorf("%s %q: got stderr %q, want a word on the policy that was not picked: %t", command, tt.args, got.stderr, builtIn)
			}
			if got.code != tt.code || !strings.Contains(said, tt.want) {
				t.Errorf("%s %q: got code %d, stdout %.200q, stderr %q, want %q", command, tt.args, got.code, got.stdout, got.stderr, tt.want)
			}
		}
	}
}

func TestSlices_NoPartitions(t *testing.T) {
	p := writeFile(t, "p.yaml", "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\n"+
		"rules: [{match: {indexes: [0]}, tiers: [exclusive, mig]}, {tiers: [exclusive]}]")
	got := cleave(t, "slices", "--node-model", "a30", "--policy", p)
	if got.code != cli.ExitOK || strings.Count(got.stderr, "offers no partitions: MIG mode is off") != 1 {
		t.Errorf("got code %d, stderr %q", got.code, got.stderr)
	}
}
