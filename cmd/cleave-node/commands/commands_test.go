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
	for name, tt := range map[string]struct {
		args []string
		want []string
	}{
		"nothing":                    {nil, []string{"subcommand is needed: inspect, kubelet-plugin, mps-supervisor, version, webhook", "'cleave-node --help'"}},
		"a command of cleave":        {[]string{"slices"}, []string{`unknown subcommand "slices"`}},
		"a cluster":                  {[]string{"inspect", "--from-cluster"}, []string{"--from-cluster", "'cleave-node inspect --help'"}},
		"output":                     {[]string{"inspect", "-o", "xml"}, []string{`--output "xml"`, "table, wide, json, yaml"}},
		"misspelt plugin":            {[]string{"kublet-plugin"}, []string{`"kublet-plugin"`, "did you mean kubelet-plugin?"}},
		"unknown flag of plugin":     {[]string{"kubelet-plugin", "--node-nam=x"}, []string{"--node-nam", "'cleave-node kubelet-plugin --help'"}},
		"argument of plugin":         {[]string{"kubelet-plugin", "x"}, []string{`unexpected argument "x"`}},
		"duration that is none":      {[]string{"kubelet-plugin", "--driver-retry", "soon"}, []string{"--driver-retry", "soon"}},
		"plugin without node name":   {[]string{"kubelet-plugin"}, []string{"--node-name"}},
		"plugin, relative directory": {[]string{"kubelet-plugin", "--node-name=n", "--cdi-dir=x"}, []string{"--cdi-dir", `"x"`}},
		"plugin, odd log format":     {[]string{"kubelet-plugin", "--node-name=n", "--logging-format=xml"}, []string{"xml"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NODE_NAME", "")
			got := cleaveNode(t, tt.args...)
			if got.code != cli.ExitUsage || got.stdout != "" {
				t.Errorf("got exit code %d and stdout %q, want %d and nothing; stderr %q", got.code, got.stdout, cli.ExitUsage, got.stderr)
			}
			for _, want := range append(tt.want, "cleave-node: ", "for usage") {
				if !strings.Contains(got.stderr, want) {
					t.Errorf("stderr %q does not say %q", got.stderr, want)
				}
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

func TestFlagsFromEnvironment_InvalidValue(t *testing.T) {
	t.Setenv("KUBE_API_BURST", "many")
	t.Setenv("DRIVER_RETRY", "soon")
	got := cleaveNode(t, "kubelet-plugin", "--node-name=n")
	if got.code != cli.ExitUsage {
		t.Errorf("exit code: got %d, want %d", got.code, cli.ExitUsage)
	}
	for _, want := range []string{"KUBE_API_BURST", "many", "DRIVER_RETRY", "soon"} {
		if !strings.Contains(got.stderr, want) {
			t.Errorf("stderr %q does not say %q", got.stderr, want)
		}
	}
}

func TestKubeletPlugin_Environment(t *testing.T) {
	t.Setenv("NODE_NAME", "node-1")
	t.Setenv("CDI_DIR", "not-absolute")
	got := cleaveNode(t, "kubelet-plugin")
	if got.code != cli.ExitUsage || !strings.Contains(got.stderr, `--cdi-dir "not-absolute"`) || strings.Contains(got.stderr, "--node-name") {
		t.Errorf("got code %d, stderr %q, want a complaint about --cdi-dir alone", got.code, got.stderr)
	}
}

func TestInspect_NoDriver(t *testing.T) {
	empty := t.TempDir()
	got := cleaveNode(t, "inspect", "--driver-root", empty, "--kubelet-plugins-dir", empty)
	if got.code != cli.ExitFailed || got.stdout != "" || !strings.Contains(got.stderr, "--nvml-library") {
		t.Errorf("got code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
}

func TestKubeletPlugin_ImportFormatOfEnvironment(t *testing.T) {
	t.Setenv("IMPORT_FORMAT", "hami")
	if got := cleaveNode(t, "kubelet-plugin", "--node-name=n"); got.code != cli.ExitUsage ||
		!strings.Contains(got.stderr, "environment variable IMPORT_FORMAT") {
		t.Errorf("got code %d, stderr %q", got.code, got.stderr)
	}
}
