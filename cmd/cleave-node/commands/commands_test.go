// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/cli"
)

// outcome of one command line.
type outcome struct {
	code           int
	stdout, stderr string
}

func cleaveNode(t *testing.T, args ...string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := cli.Run(t.Context(), New(), args, &stdout, &stderr)
	return outcome{code, stdout.String(), stderr.String()}
}

func TestRun_UsageErrors(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	for line, says := range map[string][]string{
		"":                                                  {"subcommand is needed: inspect, kubelet-plugin, mps-supervisor, version, webhook", "'cleave-node --help'"},
		"slices":                                            {`unknown subcommand "slices"`}, // a command of cleave
		"inspect --from-cluster":                            {"--from-cluster", "'cleave-node inspect --help'"},
		"inspect -o xml":                                    {`--output "xml"`, "table, wide, json, yaml"},
		"kublet-plugin":                                     {`"kublet-plugin"`, "did you mean kubelet-plugin?"},
		"kubelet-plugin --node-nam=x":                       {"--node-nam", "'cleave-node kubelet-plugin --help'"},
		"kubelet-plugin x":                                  {`unexpected argument "x"`},
		"kubelet-plugin --driver-retry soon":                {"--driver-retry", "soon"},
		"kubelet-plugin --import-format hami":               {"--import-format"},
		"kubelet-plugin":                                    {"--node-name"},
		"mps-supervisor --dir here":                         {"--dir"},
		"mps-supervisor --compute-mode shared":              {`--compute-mode "shared"`},
		"mps-supervisor --start-timeout 0s":                 {"--start-timeout"},
		"mps-supervisor --stop-timeout soon":                {"--stop-timeout"},
		"mps-supervisor extra":                              {"extra"},
		"mps-supervisor status -o yaml":                     {"--output"},
		"kubelet-plugin --node-name=n --cdi-dir=x":          {"--cdi-dir", `"x"`},
		"kubelet-plugin --node-name=n --logging-format=xml": {"xml"},
	} {
		checkUsage(t, line, says...)
	}
}

func checkUsage(t *testing.T, line string, says ...string) outcome {
	t.Helper()
	got := cleaveNode(t, strings.Fields(line)...)
	if got.code != cli.ExitUsage || got.stdout != "" {
		t.Errorf("%q: got exit code %d and stdout %q, want %d and nothing; stderr %q", line, got.code, got.stdout, cli.ExitUsage, got.stderr)
	}
	for _, want := range append(says, "cleave-node: ", "for usage") {
		if !strings.Contains(got.stderr, want) {
			t.Errorf("%q: stderr %q does not say %q", line, got.stderr, want)
		}
	}
	return got
}

// Flags of the environment are checked as those of the command line.
func TestKubeletPlugin_Environment(t *testing.T) {
	t.Setenv("NODE_NAME", "node-1")
	for environment, says := range map[string][]string{
		"KUBE_API_BURST=many DRIVER_RETRY=soon": {"environment variable KUBE_API_BURST", "many", "environment variable DRIVER_RETRY", "soon"},
		"IMPORT_FORMAT=hami":                    {"environment variable IMPORT_FORMAT"},
		"CDI_DIR=not-absolute":                  {`--cdi-dir "not-absolute"`},
	} {
		t.Run(environment, func(t *testing.T) {
			for _, variable := range strings.Fields(environment) {
				name, value, _ := strings.Cut(variable, "=")
				t.Setenv(name, value)
			}
			if got := checkUsage(t, "kubelet-plugin", says...); strings.Contains(got.stderr, "--node-name") {
				t.Errorf("got stderr %q, want nothing of --node-name", got.stderr)
			}
		})
	}
}

func TestKubeletPlugin_HelpListsFlags(t *testing.T) {
	help := cleaveNode(t, "kubelet-plugin", "--help").stdout
	for _, flag := range []string{
		"--node-name", "--driver-name", "--kubeconfig", "--kubelet-plugins-dir", "--kubelet-registry-dir", "--cdi-dir", "--driver-root",
		"--container-driver-root", "--nvml-library", "--metrics-address", "--logging-format", "--kube-api-qps", "--kube-api-burst",
	} {
		if !strings.Contains(help, flag+" ") {
			t.Errorf("help does not list %s", flag)
		}
	}
}

func TestInspect_NoDriver(t *testing.T) {
	empty := t.TempDir()
	got := cleaveNode(t, "inspect", "--driver-root", empty, "--kubelet-plugins-dir", empty)
	if got.code != cli.ExitFailed || got.stdout != "" || !strings.Contains(got.stderr, "--nvml-library") {
		t.Errorf("got code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
}
