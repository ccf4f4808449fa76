// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/build"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/e2e/conformance/fakedriver"
	"github.com/cleave-dra/cleave/e2e/conformance/suite"
)

// program runs the program against a driver and returns its exit code and outputs.
func program(t *testing.T, faults []fakedriver.Fault, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "c") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	client := fakedriver.NewAPIServer()
	d := fakedriver.New(dir, client, faults, nil)
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		d.Stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}()
	args = append([]string{
		"--driver", fakedriver.Name, "--node", fakedriver.Node, "--class", fakedriver.Class, "--registry-dir", d.RegistryDir(),
		"--cdi-dir", d.CDIDir(), "--kubeconfig", "its-name",
	}, args...)
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs, func(kubeconfig string) (kubernetes.Interface, error) {
		if kubeconfig != "its-name" {
			return nil, errors.New("another kubeconfig")
		}
		return client, nil
	})
	return code, out.String(), errs.String()
}

func TestRun_Table(t *testing.T) {
	code, stdout, stderr := program(t, nil, "--run", "^(prepare|restart)/", "--skip", "^prepare/alternatives$")
	for _, want := range []string{"prepare/idempotent", "pass", "restart/prepared", "skip", "was given no command that restarts", "0 failed, 4 skipped"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the table lacks %q:\n%s", want, stdout)
		}
	}
	if code != exitPassed || strings.Contains(stdout, "alternatives") || !strings.Contains(stderr, "pass prepare/idempotent") {
		t.Errorf("exit code %d, output:\n%s\n%s", code, stdout, stderr)
	}
}

func TestRun_Commands(t *testing.T) {
	file := filepath.Join(t.TempDir(), "commands")
	// The commands do nothing to the driver: a restart that restarts nothing passes, and no damage is seen.
	code, stdout, _ := program(t, nil, "--run", "^restart/prepared$|^taints/damaged$", "--settle-timeout", "300ms", "--restart-command", "echo restart $DRA_DRIVER >> "+file,
		"--damage-command", "echo damage $DRA_POOL $DRA_DEVICE >> "+file, "--repair-command", "echo repair $DRA_DEVICE >> "+file)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := "restart device.example.com\ndamage node-1 device-0\nrepair device-0\n"
	if diff := cmp.Diff(want, string(data)); diff != "" || code != exitFailed || !strings.Contains(stdout, "1 passed, 1 failed") {
		t.Errorf("exit code %d (-want +got):\n%s\n%s", code, diff, stdout)
	}
}

func TestRun_JSON(t *testing.T) {
	code, stdout, stderr := program(t, []fakedriver.Fault{fakedriver.AllowsDoubleUse}, "--run", "^prepare/in-use$", "-o", "json")
	var report suite.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatal(err)
	}
	if code != exitFailed || report.Failed != 1 || report.Cases[0].Result != suite.Fail || report.Cases[0].Source == "" || stderr != "" {
		t.Errorf("exit code %d, report %+v, errors %q", code, report, stderr)
	}
}

func TestRun_List(t *testing.T) {
	code, stdout, _ := program(t, nil, "--list")
	for _, c := range suite.Cases() {
		if !strings.Contains(stdout, c.Name+"\n  "+c.Rule) {
			t.Errorf("--list lacks %s", c.Name)
		}
	}
	if code != exitPassed {
		t.Errorf("exit code %d", code)
	}
}

func TestRun_Usage(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--driver", ""}, "are needed"},
		{[]string{"--registry-dir", ""}, "--registry-dir or --plugin-socket is needed"},
		{[]string{"-o", "xml"}, `"xml": want table or json`},
		{[]string{"--damage-command", "true"}, "are needed together"},
		{[]string{"--run", "("}, "--run"},
		{[]string{"--skip", "("}, "--skip"},
		{[]string{"--unknown"}, "unknown flag"},
		{[]string{"--kubeconfig", "other"}, "another kubeconfig"},
		{[]string{"--class", "other"}, "find DeviceClass other"},
	} {
		if code, _, stderr := program(t, nil, c.args...); code != exitUsage || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: exit code %d and %q, want %d and %q", c.args, code, stderr, exitUsage, c.want)
		}
	}
}

// The suite is for any driver: it knows nothing of Cleave.
func TestImports_NothingOfCleave(t *testing.T) {
	const module, own = "github.com/cleave-dra/cleave/", "github.com/cleave-dra/cleave/e2e/conformance/"
	packages := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		p, err := build.Default.ImportDir(path, 0)
		if err != nil {
			return err
		}
		packages++
		for _, i := range append(append(p.Imports, p.TestImports...), p.XTestImports...) {
			if strings.HasPrefix(i, module) && !strings.HasPrefix(i, own) {
				t.Errorf("%s imports %s", path, i)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if packages != 5 {
		t.Errorf("%d packages were looked at, want 5", packages)
	}
}

// rows of the table of results in README.md: the case, what it says, and a result for each driver.
var rows = regexp.MustCompile("(?m)^\\| `([a-z/-]+)` \\| (.+?) \\| (.+?) \\| (pass|fail|skip)[^|]* \\| (pass|fail|skip)[^|]* \\| (pass|fail|skip)[^|]* \\|$")

func TestReadme_AllCases(t *testing.T) {
	data, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var got, want [][]string
	for _, row := range rows.FindAllStringSubmatch(string(data), -1) {
		got = append(got, row[1:4])
	}
	for _, c := range suite.Cases() {
		want = append(want, []string{c.Name, c.Rule, c.Source})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the table of README.md (-cases +rows):\n%s", diff)
	}
}
