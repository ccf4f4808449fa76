// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestVersion(t *testing.T) {
	for _, test := range []struct{ option, variable, want, wantErr string }{
		{want: DefaultVersion},
		{variable: "1.36.4", want: "1.36.4"},
		{option: "1.37.2", variable: "1.36.4", want: "1.37.2"},
		{option: "v1.36.4", want: "1.36.4"},
		{option: "1.36", wantErr: "valid versions are 1.37.2, 1.36.4, 1.35.4, 1.34.4"},
		{variable: "latest", wantErr: "valid versions are 1.37.2, 1.36.4, 1.35.4, 1.34.4"},
	} {
		t.Setenv(VersionVariable, test.variable)
		got, err := Options{Version: test.option}.Resolve()
		if test.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("option %q, variable %q: error %v, want one with %q", test.option, test.variable, err, test.wantErr)
			}
			continue
		}
		if err != nil || got.Version != test.want {
			t.Errorf("option %q, variable %q: %q, %v, want %q", test.option, test.variable, got.Version, err, test.want)
		}
	}
}

func TestOptions_Nodes(t *testing.T) {
	for _, tt := range []struct {
		options Options
		want    int // 0: refused
	}{
		{Options{}, 1}, {Options{Nodes: 3}, 3}, {Options{Nodes: -1}, 0}, {Options{Nodes: 10}, 0},
		{Options{ControlPlane: true}, 1}, {Options{ControlPlane: true, Nodes: 2}, 0},
	} {
		got, err := tt.options.Resolve()
		if (err == nil) != (tt.want != 0) || err == nil && got.Nodes != tt.want {
			t.Errorf("%d nodes: %d, %v, want %d", tt.options.Nodes, got.Nodes, err, tt.want)
		}
	}
}

func TestVersion_Modules(t *testing.T) {
	source, err := FindSource()
	must(t, err)
	for _, version := range Versions() {
		path := filepath.Join(source, "e2e", "kubernetes", "v"+minorOf(version), "go.mod")
		data, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.Contains(string(data), "require k8s.io/kubernetes v"+version+"\n") {
			t.Errorf("%s does not require k8s.io/kubernetes v%s", path, version)
		}
	}
}

func TestKubernetesFlags(t *testing.T) {
	want := "-s -w" +
		" -X k8s.io/component-base/version.gitVersion=v1.36.4 -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36" +
		" -X k8s.io/client-go/pkg/version.gitVersion=v1.36.4 -X k8s.io/client-go/pkg/version.gitMajor=1 -X k8s.io/client-go/pkg/version.gitMinor=36"
	if diff := cmp.Diff(want, kubernetesFlags("1.36.4")); diff != "" {
		t.Errorf("linker flags (-want +got):\n%s", diff)
	}
}

func TestCheckDir(t *testing.T) {
	for dir, want := range map[string]string{
		"":                          DefaultDir,
		"/var/lib/x/":               "/var/lib/x",
		"/tmp/../var/lib/x":         "/var/lib/x",
		"/":                         "error: a directory of its own",
		"/cluster":                  "error: a directory of its own",
		"/var/lib/with space":       "error: without spaces",
		"/var/lib/" + longName(100): "error: may have 36",
	} {
		got, err := checkDir(dir)
		if reason, isErr := strings.CutPrefix(want, "error: "); isErr {
			if err == nil || !strings.Contains(err.Error(), reason) {
				t.Errorf("checkDir(%q): error %v, want one with %q", dir, err, reason)
			}
		} else if err != nil || got != want {
			t.Errorf("checkDir(%q) = %q, %v, want %q", dir, got, err, want)
		}
	}
}

func longName(n int) string { return strings.Repeat("n", n) }

func TestBuild_UpToDate(t *testing.T) {
	module, dir := t.TempDir(), t.TempDir()
	write := func(path, content string, mode os.FileMode) {
		t.Helper()
		must(t, os.WriteFile(path, []byte(content), mode))
	}
	write(filepath.Join(module, "go.mod"), "module m\n", 0o600)
	write(filepath.Join(module, "go.sum"), "", 0o600)
	p := program{name: "p", pkg: "m/p", module: module, dir: dir}
	check := func(what string, want bool) {
		t.Helper()
		if got, err := p.isFresh(); err != nil || got != want {
			t.Errorf("%s: fresh %t, %v, want %t", what, got, err, want)
		}
	}
	check("nothing built", false)
	source, err := p.source()
	must(t, err)
	write(p.stamp(), source, 0o600)
	check("a stamp without a program", false)
	write(p.path(), "", 0o700)
	check("built", true)
	write(filepath.Join(module, "go.sum"), "changed\n", 0o600)
	check("changed dependencies", false)
}
