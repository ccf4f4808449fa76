// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/cli"
)

// importData are the files of the package that does the work.
const importData = "../../../pkg/tools/migrate/testdata"

// filesIn reads a directory.
func filesIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, path))
		files[path] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestImport_Print(t *testing.T) {
	for _, name := range []string{"device-plugin-shared", "mig-parted-default"} {
		kind := "device-plugin"
		if strings.HasPrefix(name, "mig-parted") {
			kind = "mig-parted"
		}
		golden, err := os.ReadFile(filepath.Join(importData, name+".golden"))
		if err != nil {
			t.Fatal(err)
		}
		got := cleave(t, "import", kind, filepath.Join(importData, name+".yaml"))
		if got.code != cli.ExitOK {
			t.Fatalf("code %d, stderr %q", got.code, got.stderr)
		}
		if diff := cmp.Diff(string(golden), strings.ReplaceAll(got.stdout, importData+"/", "")); diff != "" {
			t.Errorf("%s: output (-golden +got):\n%s", name, diff)
		}
		var notes []string
		for line := range strings.Lines(got.stdout) {
			if note, ok := strings.CutPrefix(line, "# - "); ok {
				notes = append(notes, "cleave: "+note)
			}
		}
		if diff := cmp.Diff(strings.Join(notes, ""), got.stderr); diff != "" || len(notes) < 3 {
			t.Errorf("%s: stderr (-comments +got):\n%s", name, diff)
		}
	}
}

func TestImport_StandardInput(t *testing.T) {
	root := New("cleave")
	var out bytes.Buffer
	root.SetArgs([]string{"import", "mig-parted", "-", "--name", "b", "--driver-name", "gpu.nvidia.com"})
	root.SetIn(strings.NewReader("version: v1\nmig-configs: {a: [{devices: all, mig-enabled: false}], b: [{devices: all, mig-enabled: " +
		"true, mig-devices: {1g.10gb: 7}}]}"))
	root.SetOut(&out)
	root.SetErr(&bytes.Buffer{})
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{"kind: NodePolicy": 1, "name: b\n": 1, "kind: DeviceClass": 1,
		`device.driver == "gpu.nvidia.com"`: 1, "- -: mig-configs: ": 1} {
		if got := strings.Count(out.String(), text); got != want {
			t.Errorf("%q is there %d times, want %d, in\n%s", text, got, want, out.String())
		}
	}
}

func TestImport_OutputDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "directory")
	for range 2 { // once more over what is there
		if got := cleave(t, "import", "mig-parted", filepath.Join(importData, "mig-parted-default.yaml"), "--output-dir",
			dir); got.code != cli.ExitOK || got.stdout != "" {
			t.Fatalf("code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
		}
	}
	files := filesIn(t, dir)
	var names []string
	for name, text := range files {
		names = append(names, name)
		if !strings.HasPrefix(text, "# Made by cleave import mig-parted.\n") {
			t.Errorf("%s does not say where it comes from: %.60q", name, text)
		}
		if strings.Contains(text, "[all-enabled]") != slices.Contains([]string{"deviceclasses.yaml", "policies/all-enabled.yaml"}, name) {
			t.Errorf("%s has the note of another policy, or lacks its own", name)
		}
	}
	slices.Sort(names)
	want := []string{"deviceclasses.yaml", "policies/all-1g.10gb.yaml", "policies/all-1g.24gb-me.yaml", "policies/all-1g.24gb.gfx.yaml",
		"policies/all-1g.5gb.me.yaml", "policies/all-balanced.yaml", "policies/all-disabled.yaml", "policies/all-enabled.yaml"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if strings.Contains(files["deviceclasses.yaml"], "NodePolicy") || strings.Contains(files["policies/all-balanced.yaml"], "DeviceClass\n") {
		t.Error("policies and classes are mixed")
	}
	// The same by the policies that were written, and by the file itself.
	written := cleave(t, "slices", "--node-model", "hgx-h100", "--policy", filepath.Join(dir, "policies"), "--policy-name", "all-balanced")
	taken := cleave(t, "slices", "--node-model", "hgx-h100", "--policy", filepath.Join(importData, "mig-parted-default.yaml"),
		"--import-format", "mig-parted", "--policy-name", "all-balanced")
	if diff := cmp.Diff(written, taken, cmp.AllowUnexported(outcome{})); diff != "" || taken.code != cli.ExitOK ||
		!strings.Contains(taken.stdout, "32 devices in") {
		t.Errorf("slices by --import-format (-by what was written +got):\n%s\n%s", diff, taken.stdout)
	}
}

func TestImport_SeveralFiles(t *testing.T) {
	a, b := writeFile(t, "training.yaml", "version: v1"), writeFile(t, "notebooks.conf",
		"version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 8}]}}")
	dir := t.TempDir()
	if got := cleave(t, "import", "device-plugin", a, b, "--output-dir", dir); got.code != cli.ExitOK {
		t.Fatalf("code %d, stderr %q", got.code, got.stderr)
	}
	files := filesIn(t, dir)
	for name, want := range map[string]string{"policies/training.yaml": "- exclusive", "policies/notebooks.yaml": "shares: 8",
		"deviceclasses.yaml": "nvidia.com/gpu.shared"} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s does not have %q:\n%s", name, want, files[name])
		}
	}
	if got := cleave(t, "import", "device-plugin", a, a); got.code != cli.ExitFailed ||
		!strings.Contains(got.stderr, a+`: another file has a policy "training", too`) {
		t.Errorf("a file twice: code %d, stderr %q", got.code, got.stderr)
	}
}

// A ConfigMap is imported as the files are that it holds.
func TestImport_ConfigMap(t *testing.T) {
	configMap := func(data string) string {
		return writeFile(t, "map.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: gpu-operator}\ndata:\n"+data)
	}
	const single = "  config.yaml: |\n    version: v1\n    sharing: {timeSlicing: {resources: [{name: gpu, replicas: 8}]}}\n"
	plugins := configMap(single + "  any: |\n    version: v1\n")
	operator := writeFile(t, "map.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  any: 'version: v1'\n  shared: |\n    version: v1\n"+
		"    sharing: {timeSlicing: {failRequestsGreaterThanOne: true, renameByDefault: true, resources: [{name: gpu, replicas: 8}]}}\n---\napiVersion: nvidia.com/v1\nkind: ClusterPolicy\n"+
		"metadata: {name: cluster-policy}\nspec: {devicePlugin: {config: {name: c, default: any}}}\n")
	parted := configMap("  config.yaml: |\n    version: v1\n    mig-configs: {all-balanced: [{devices: all, mig-enabled: false}]}\n")
	tests := map[string]struct {
		args  []string
		names []string
		says  string // on stderr
	}{
		"one key":              {[]string{"device-plugin", configMap(single)}, []string{"default"}, "map.yaml, config.yaml: sharing.timeSlicing"},
		"a key by a name":      {[]string{"device-plugin", "--name", "a", configMap(single)}, []string{"a"}, ""},
		"several keys":         {[]string{"device-plugin", plugins}, []string{"any", "config"}, ""},
		"mig-parted":           {[]string{"mig-parted", parted}, []string{"all-balanced"}, ""},
		"several, and a name":  {[]string{"device-plugin", "--name", "a", plugins}, nil, "--name goes with one file, and there are 2"},
		"nothing in it":        {[]string{"device-plugin", configMap("")}, nil, "ConfigMap c has no data"},
		"another thing in it":  {[]string{"mig-parted", plugins}, nil, "map.yaml, any: "},
		"what is no ConfigMap": {[]string{"device-plugin", writeFile(t, "pod.yaml", "apiVersion: v1\nkind: Pod\n")}, nil, "only a ConfigMap can be imported: passed over: Pod"},
		"a key of another kind": {[]string{"device-plugin", configMap(single + "  README: text\n  empty: ''\n")}, []string{"config", "empty"},
			"map.yaml: key README of ConfigMap c"},
		"capitals": {[]string{"device-plugin", configMap("  A100_40GB: 'version: v1'\n  t4: 'version: v1'\n")}, []string{"a100-40gb", "t4"},
			"A100_40GB: the policy is named a100-40gb"},
		"the default of the operator": {[]string{"device-plugin", operator}, []string{"any", "default", "shared"}, "map.yaml: ClusterPolicy cluster-policy\n"},
		"the default of the manager":  {[]string{"mig-parted", operator}, nil, "map.yaml, any: mig-configs: Required value"},
		"another default":             {[]string{"device-plugin", "--default", "shared", operator}, []string{"any", "default", "shared"}, ""},
		"a default that is not":       {[]string{"device-plugin", "--default", "sharde", operator}, nil, `choose a default: the default is to be "sharde", and there is no such policy: choose one of any, shared`},
		"no default":                  {[]string{"device-plugin", plugins}, []string{"any", "config"}, "no policy is named default: nodes without a label offer every tier"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			got := cleave(t, append([]string{"import", "--output-dir", dir}, tt.args...)...)
			if (got.code == cli.ExitOK) != (tt.names != nil) || !strings.Contains(got.stderr, tt.says) {
				t.Errorf("code %d, stderr %q, want %q said", got.code, got.stderr, tt.says)
			}
			var names []string
			for file := range filesIn(t, dir) {
				if policy, ok := strings.CutPrefix(file, "policies/"); ok {
					names = append(names, strings.TrimSuffix(policy, ".yaml"))
				}
			}
			slices.Sort(names)
			if diff := cmp.Diff(tt.names, names); diff != "" {
				t.Errorf("policies (-want +got):\n%s", diff)
			}
		})
	}
}

// A file of a repository, with the operator's ClusterPolicy. Nodes without a label have what they had.
func TestImport_Operator(t *testing.T) {
	file := writeFile(t, "operator.yaml", "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: c}\n  data:\n    any: 'version: v1'\n    shared: |\n      version: v1\n"+
		"      sharing: {timeSlicing: {failRequestsGreaterThanOne: true, renameByDefault: true, resources: [{name: gpu, replicas: 8}]}}\n"+
		"- {apiVersion: nvidia.com/v1, kind: ClusterPolicy, metadata: {name: cluster-policy}, spec: {mig: {strategy: mixed}, devicePlugin: {config: {default: shared}}}}\n")
	dir := t.TempDir()
	got := cleave(t, "import", "device-plugin", file, "--output-dir", dir)
	if got.code != cli.ExitOK || !strings.Contains(got.stderr, "passed over: "+file+": ClusterPolicy cluster-policy") || strings.Contains(got.stderr, "no policy is named default") {
		t.Fatalf("code %d, stderr %s", got.code, got.stderr)
	}
	files := filesIn(t, dir)
	if want := strings.Replace(files["policies/shared.yaml"], "name: shared", "name: default", 1); files["policies/default.yaml"] != want || want == "" {
		t.Errorf("the default:\n%s\nwant\n%s", files["policies/default.yaml"], want)
	}
	if !strings.Contains(files["policies/shared.yaml"], "mode: existing") || !strings.Contains(files["deviceclasses.yaml"], "extendedResourceName: nvidia.com/mig-1g.10gb\n") ||
		strings.Count(got.stderr, "flags.migStrategy: none: the ClusterPolicy's mig.strategy, which is mixed, comes before that of the file") != 2 {
		t.Errorf("the strategy of the ClusterPolicy: stderr %s\n%s", got.stderr, files["policies/shared.yaml"])
	}
	if a := files["admission.yaml"]; !strings.Contains(a, `["nvidia.com/gpu.shared"].all(`) || !strings.Contains(a, "validationActions: [Deny]") {
		t.Errorf("the admission policy:\n%s", a)
	}
	// With another file in which the resource stands for whole GPUs, two of them are a right request.
	whole, shares := writeFile(t, "whole.yaml", "version: v1"), writeFile(t, "shares.yaml", "version: v1\nsharing: {mps: {resources: [{name: gpu, replicas: 8}]}}")
	dir = t.TempDir()
	if got := cleave(t, "import", "device-plugin", whole, shares, "--output-dir", dir); got.code != cli.ExitOK || filesIn(t, dir)["admission.yaml"] != "" ||
		!strings.Contains(filesIn(t, dir)["deviceclasses.yaml"], "# nvidia.com/gpu: whole GPUs; or GPUs shared by MPS, 8 shares each\n") {
		t.Errorf("code %d, %v", got.code, filesIn(t, dir))
	}
}

func TestImport_Problems(t *testing.T) {
	bad := writeFile(t, "bad.yaml", "version: v1\nflags: {passDeviceSpecs: true}\nbanana: 1")
	odd := writeFile(t, "odd.yaml", "\x00")
	missing := filepath.Join(t.TempDir(), "missing.yaml")
	got := cleave(t, "import", "device-plugin", bad, odd, missing)
	if got.code != cli.ExitFailed || got.stdout != "" {
		t.Errorf("code %d, stdout %q", got.code, got.stdout)
	}
	want := []string{
		"cleave: read a file: open " + missing + ": no such file or directory",
		bad + `: unknown field "banana"`,
		bad + `: unknown field "flags.passDeviceSpecs": did you mean flags.plugin.passDeviceSpecs?`,
		odd + ": read YAML: yaml: control characters are not allowed",
	}
	if diff := cmp.Diff(strings.Join(want, "\n")+"\n", got.stderr); diff != "" {
		t.Errorf("stderr (-want +got):\n%s", diff)
	}
	dir := t.TempDir()
	if got := cleave(t, "import", "mig-parted", odd, "--output-dir", dir); got.code != cli.ExitFailed || len(filesIn(t, dir)) > 0 {
		t.Errorf("code %d, files %v", got.code, filesIn(t, dir))
	}
	if got := cleave(t, "import", "device-plugin", writeFile(t, "a.yaml", "version: v1"), "--output-dir", odd); got.code != cli.ExitFailed ||
		!strings.Contains(got.stderr, "create the output directory") {
		t.Errorf("a file as directory: code %d, stderr %q", got.code, got.stderr)
	}
}

func TestValidate_ImportFormat(t *testing.T) {
	parted := filepath.Join(importData, "mig-parted-default.yaml")
	got := cleave(t, "validate", "--import-format", "mig-parted", "-f", parted, "--policy-name", "all-balanced", "--node-model", "hgx-h100",
		"-f", "../../../deployments/examples/mig-pair-4g-3g.yaml")
	for _, want := range []string{
		"note: " + parted + ": mig-configs[all-enabled][0].mig-devices: {}",
		parted + ": ok: NodePolicy all-1g.10gb, NodePolicy all-1g.24gb-me, NodePolicy all-1g.24gb.gfx, NodePolicy all-1g.5gb.me, NodePolicy all-balanced",
		"mig-pair-4g-3g.yaml: ", "mig-4g.40gb", // which the layout does not have
	} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("%q is not in\n%s", want, got.stdout)
		}
	}
	got = cleave(t, "validate", "--import-format", "mig-parted", "-f", parted, "--policy-name", "all-1g.5gb.me", "--node-model", "hgx-h100")
	if got.code != cli.ExitFailed || !strings.Contains(got.stdout,
		`policy "all-1g.5gb.me": on a node of model hgx-h100: rules[0].mig.layout[1g.5gb+me]: NVIDIA H100 80GB HBM3 has no profile 1g.5gb+me`) {
		t.Errorf("a mig-config of another board: code %d, stdout %s", got.code, got.stdout)
	}
	got = cleave(t, "validate", "--import-format", "device-plugin", "-f", parted)
	if got.code != cli.ExitFailed || !strings.Contains(got.stdout, parted+`: unknown field "mig-configs"`) {
		t.Errorf("a file of the other format: code %d, stdout %s", got.code, got.stdout)
	}
}
