// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/golden"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

const (
	examples = "../../../deployments/examples"
	policies = examples + "/policies"
)

func TestSlices_Layouts(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		t.Run(model, func(t *testing.T) {
			got := cleave(t, "slices", "--node-model", model, "--policy", "testdata/layouts.yaml")
			if got.code != cli.ExitOK || got.stderr != "" {
				t.Fatalf("got code %d, stderr %q", got.code, got.stderr)
			}
			golden.Check(t, filepath.Join("testdata", "layouts-"+model+".txt"), got.stdout)
		})
	}
}

func TestSlices_ExamplePolicies(t *testing.T) {
	set, err := policy.Load(policies, policy.Format{})
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(policies + "/*")
	if err != nil || len(files) != len(set.Names()) {
		t.Errorf("got policies %q of files %q, want one of each", set.Names(), files)
	}
	for _, model := range simulated.NodeModels() {
		got := cleave(t, "validate", "-f", policies, "--node-model", model)
		if got.code != cli.ExitOK || got.stderr != "" || strings.Count(got.stdout, ": ok: NodePolicy ") != len(files) {
			t.Errorf("%s: got code %d, stderr %q, stdout:\n%s", model, got.code, got.stderr, got.stdout)
		}
	}
}

func TestValidate_Problems(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string]string{
		"bad.yaml":  "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\nrules: [{mps: {shares: 0}, timeSlice: {shares: 0}}]",
		"good.yaml": "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: x}\nrules: [{mig: {layout: {1g.6gb: 4}}}]",
		"pods.yaml": "apiVersion: v1\nkind: Pod\n---\napiVersion: v1\nkind: Pod\n---\napiVersion: v1\nkind: Namespace\n",
		"claim.yaml": "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\n" +
			"spec: {devices: {requests: [{name: r, exactly: {deviceClassName: other.example.com}}]}}\n---\napiVersion: v1\nkind: Pod\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bad, good, pods, claim := filepath.Join(dir, "bad.yaml"), filepath.Join(dir, "good.yaml"), filepath.Join(dir,
		"pods.yaml"), filepath.Join(dir, "claim.yaml")
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

func TestValidate_UsageErrors(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "there is nothing to check: name files or directories with -f"},
		{[]string{"policy.yaml"}, `unexpected argument "policy.yaml": name files with -f policy.yaml`},
		{[]string{"-f", policies + "/trainig.yaml"}, "did you mean " + policies + "/training.yaml?"},
		{[]string{"-f", policies, "--this-node", "--node-model", "t4"}, "--this-node and --node-model exclude each other"},
		{[]string{"-f", policies, "--driver-root", "/x"}, "--driver-root is about this machine: add --this-node"},
		{[]string{"-f", policies, "--policy-name", "training"}, "--policy-name selects the policy of a node: add --node-model or --this-node"},
		{[]string{"-f", policies, "--node-model", "t4", "--policy-name", "x"},
			`there is no policy "x": choose one of development, existing, inference`},
		{[]string{"-f", policies, "--node-model", "t5"}, `unknown node model "t5": choose one of`},
		{[]string{"-f", policies, "--driver-name", "A B"}, "--driver-name"},
		{[]string{"--fiel", policies}, "unknown flag: --fiel"},
		{[]string{"-f"}, "flag needs an argument: 'f'"},
	} {
		got := cleave(t, append([]string{"validate"}, tt.args...)...)
		if got.code != cli.ExitUsage || got.stdout != "" || !strings.Contains(got.stderr, tt.want) ||
			!strings.Contains(got.stderr, "Run 'cleave validate --help' for usage.") {
			t.Errorf("%q: got code %d, stdout %q, stderr %q, want %q", tt.args, got.code, got.stdout, got.stderr, tt.want)
		}
	}
}

func TestSlices_PolicyErrors(t *testing.T) {
	misfit := filepath.Join(t.TempDir(), "misfit.yaml")
	if err := os.WriteFile(misfit, []byte("apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\nrules: [{mig: {layout: {3g.40gb: 3}}}]"),
		0o600); err != nil {
		t.Fatal(err)
	}
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
	p := filepath.Join(t.TempDir(), "p.yaml")
	if err := os.WriteFile(p, []byte("apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\n"+
		"rules: [{match: {indexes: [0]}, tiers: [exclusive, mig]}, {tiers: [exclusive]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := cleave(t, "slices", "--node-model", "a30", "--policy", p)
	if got.code != cli.ExitOK || strings.Count(got.stderr, "offers no partitions: MIG mode is off") != 1 {
		t.Errorf("got code %d, stderr %q", got.code, got.stderr)
	}
}
