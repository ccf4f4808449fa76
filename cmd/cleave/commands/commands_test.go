// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// outcome of one command line.
type outcome struct {
	code           int
	stdout, stderr string
}

func cleave(t *testing.T, args ...string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := cli.Run(t.Context(), New("cleave"), args, &stdout, &stderr)
	return outcome{code, stdout.String(), stderr.String()}
}

func TestRun_Version(t *testing.T) {
	got := cleave(t, "version")
	if diff := cmp.Diff(cleave(t, "--version"), got, cmp.AllowUnexported(outcome{})); diff != "" || got.stdout != "cleave version unknown\n" {
		t.Errorf("got %v, not that of --version: %s", got, diff)
	}
	var fromJSON, fromYAML any
	if err := json.Unmarshal([]byte(cleave(t, "inspect", "--node-model", "t4", "-o", "json").stdout), &fromJSON); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(cleave(t, "inspect", "--node-model", "t4", "-o", "yaml").stdout), &fromYAML); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fromJSON, fromYAML); diff != "" {
		t.Errorf("inspect -o yaml (-JSON +YAML):\n%s", diff)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if got := cleave(t, "completion", shell); got.code != cli.ExitOK || !strings.Contains(got.stdout, "cleave") {
			t.Errorf("completion %s: %v", shell, got.code)
		}
	}
}

func TestRun_Failure(t *testing.T) {
	empty := t.TempDir()
	got := cleave(t, "slices", "--driver-root", empty, "--sysfs", empty)
	if got.code != cli.ExitFailed || got.stdout != "" {
		t.Errorf("got code %d and stdout %q, want %d and nothing", got.code, got.stdout, cli.ExitFailed)
	}
	for _, want := range []string{"libnvidia-ml.so.1", empty, "--nvml-library"} {
		if !strings.Contains(got.stderr, want) {
			t.Errorf("stderr %q does not say %q", got.stderr, want)
		}
	}
	if strings.Contains(got.stderr, "for usage") {
		t.Errorf("stderr %q sends the user to the usage, but the command line was right", got.stderr)
	}
}

// Help and docs name the same: all exit codes, the shells' completion, and none of the flags for logging, which work all the same.
func TestRun_HelpAsDocumented(t *testing.T) {
	help := cleave(t, "--help").stdout
	for _, want := range []string{"0 ok, 1 failed, 2 usage, 3 it fits, and yet waits (explain).", "\n  completion "} {
		if !strings.Contains(help, want) {
			t.Errorf("no %q in:\n%s", want, help)
		}
	}
	for _, service := range []string{"dashboard", "repack"} {
		help := cleave(t, service, "--help").stdout
		for _, flag := range []string{"--v ", "--logging-format", "--vmodule"} {
			if strings.Contains(help, flag) {
				t.Errorf("the help of %s has %s:\n%s", service, flag, help)
			}
		}
		if got := cleave(t, service, "--v=2", "--kubeconfig="+t.TempDir()+"/none"); got.code != cli.ExitFailed {
			t.Errorf("%s --v=2: code %d, %s", service, got.code, got.stderr)
		}
	}
	var plugin bytes.Buffer
	if code := cli.Run(t.Context(), New("kubectl-cleave"), []string{"--help"}, &plugin, &plugin); code != cli.ExitOK ||
		strings.Contains(plugin.String(), "\n  completion ") {
		t.Errorf("as a plugin of kubectl: code %d:\n%s", code, plugin.String())
	}
}

func TestSlices_EveryModel(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		t.Run(model, func(t *testing.T) {
			fromJSON := listOf(t, cleave(t, "slices", "--node-model", model, "-o", "json"))
			fromYAML := listOf(t, cleave(t, "slices", "--node-model", model, "--output=yaml"))
			if diff := cmp.Diff(fromJSON, fromYAML); diff != "" {
				t.Errorf("-o yaml is not -o json (-json +yaml):\n%s", diff)
			}
			devices := 0
			for _, item := range fromJSON.Items {
				if item.APIVersion != "resource.k8s.io/v1" || item.Kind != "ResourceSlice" || item.Name == "" {
					t.Errorf("item is a %s %s named %q", item.APIVersion, item.Kind, item.Name)
				}
				if *item.Spec.NodeName != model || item.Spec.Driver != "gpu.cleave.dev" {
					t.Errorf("slice %s is of node %s and driver %s", item.Name, *item.Spec.NodeName, item.Spec.Driver)
				}
				devices += len(item.Spec.Devices)
			}
			if devices == 0 {
				t.Error("no devices")
			}
		})
	}
}

// v1List is a v1 List of ResourceSlices.
type v1List struct {
	APIVersion string                      `json:"apiVersion"`
	Kind       string                      `json:"kind"`
	Items      []resourceapi.ResourceSlice `json:"items"`
}

func listOf(t *testing.T, got outcome) v1List {
	t.Helper()
	if got.code != cli.ExitOK || got.stderr != "" {
		t.Fatalf("got code %d, stderr %q", got.code, got.stderr)
	}
	data, err := yaml.YAMLToJSON([]byte(got.stdout))
	if err != nil {
		t.Fatal(err)
	}
	var list v1List
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	if list.APIVersion != "v1" || list.Kind != "List" {
		t.Errorf("got a %s %s, want a v1 List", list.APIVersion, list.Kind)
	}
	return list
}

func TestSlices_NodeAndDriverName(t *testing.T) {
	list := listOf(t, cleave(t, "slices", "--node-model", "hgx-h100", "--node-name", "node-7", "--driver-name",
		"gpu.nvidia.com", "-o", "json"))
	for _, item := range list.Items {
		if *item.Spec.NodeName != "node-7" || item.Spec.Driver != "gpu.nvidia.com" || item.Spec.Pool.Name != "node-7" {
			t.Errorf("slice %s: node %s, driver %s, pool %s", item.Name, *item.Spec.NodeName, item.Spec.Driver, item.Spec.Pool.Name)
		}
	}
}

func TestSlices_TableOrder(t *testing.T) {
	list := listOf(t, cleave(t, "slices", "--node-model", "hgx-h100", "-o", "json"))
	var want []string
	for _, item := range list.Items {
		for _, d := range item.Spec.Devices {
			want = append(want, d.Name)
		}
	}
	got := cleave(t, "slices", "--node-model", "hgx-h100")
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	var names []string
	for _, l := range lines[1 : len(lines)-1] {
		names = append(names, strings.Fields(l)[1])
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	// 8 whole GPUs and on each 25 partitions: 7 1g, 7 1g+me, 4 1g of double memory, 3 2g, 2 3g, 1 4g, 1 7g.
	if len(want) != 224 || !strings.HasPrefix(lines[len(lines)-1], "224 devices in 12 ResourceSlices") {
		t.Errorf("got %d devices and the last line %q, want 224 in 12 slices", len(want), lines[len(lines)-1])
	}
}

func TestRun_ClosedPipe(t *testing.T) {
	for command, forms := range map[string][]string{"slices": {"table", "json", "yaml"}, "inspect": {"table", "wide", "json", "yaml"}} {
		for _, form := range forms {
			args := []string{command, "--node-model", "t4", "-o", form}
			if got := cli.Run(t.Context(), New("cleave"), args, closedPipe{}, &bytes.Buffer{}); got != cli.ExitFailed {
				t.Errorf("%q: got exit code %d, want %d", args, got, cli.ExitFailed)
			}
		}
	}
}

// closedPipe is what `| head` leaves behind.
type closedPipe struct{}

func (closedPipe) Write([]byte) (int, error) { return 0, fmt.Errorf("broken pipe") }
