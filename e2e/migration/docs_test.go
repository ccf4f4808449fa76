// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/golden"
)

// document is what an admin reads.
func document() string { return filepath.Join("..", "..", "docs", "migrate.md") }

// commands are the lines of the first block of code after a text of the documentation.
func commands(t *testing.T, after string) []string {
	t.Helper()
	data, err := os.ReadFile(document())
	must(t, err)
	_, rest, found := strings.Cut(string(data), after)
	_, rest, opened := strings.Cut(rest, "\n```\n")
	block, _, closed := strings.Cut(rest, "\n```\n")
	if !found || !opened || !closed {
		t.Fatalf("%s has no commands after %q", document(), after)
	}
	return strings.Split(strings.ReplaceAll(block, "\\\n", " "), "\n")
}

// without leaves out the commands that have a text.
func without(t *testing.T, lines []string, text string) (rest []string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains(line, text) {
			rest = append(rest, line)
		}
	}
	if len(rest) == len(lines) {
		t.Fatalf("%s has no command with %q any more", document(), text)
	}
	return rest
}

// run runs commands as an admin does, with the names of the cluster.
func run(t *testing.T, ctx context.Context, lines []string, names ...string) string {
	t.Helper()
	script := strings.NewReplacer(names...).Replace(strings.Join(lines, "\n"))
	cmd := exec.CommandContext(ctx, "bash", "-euxo", "pipefail", "-c", script)
	cmd.Dir = env.admin
	cmd.Env = append(os.Environ(), "KUBECONFIG="+env.client.Cluster.Kubeconfig(),
		"PATH="+filepath.Dir(env.client.Cluster.Kubectl())+":"+filepath.Join(env.source, "bin")+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Log(diagnosis())
		t.Fatalf("%s: %v: %s", script, err, out)
	}
	t.Logf("%s", out)
	return string(out)
}

// prepareAdmin makes the directory in which commands run: a checkout's charts, and values for this cluster.
func prepareAdmin(t *testing.T) {
	t.Helper()
	env.admin = t.TempDir()
	must(t, os.Symlink(filepath.Join(env.source, "deployments"), filepath.Join(env.admin, "deployments")))
	must(t, os.WriteFile(filepath.Join(env.admin, "values.yaml"), []byte(env.values()), 0o600))
}

// checkTable compares what was seen with the documentation, which -update writes.
func checkTable(t *testing.T, table string) {
	t.Helper()
	const begin, end = "<!-- migration: go test ./e2e/migration -->\n", "<!-- end of migration -->\n"
	data, err := os.ReadFile(document())
	must(t, err)
	before, rest, found := strings.Cut(string(data), begin)
	old, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no table between %q and %q", document(), begin, end)
	}
	if *golden.Update {
		must(t, os.WriteFile(document(), []byte(before+begin+table+end+after), 0o644))
		return
	}
	if diff := cmp.Diff(old, table); diff != "" {
		t.Errorf("%s (-want +got; -update writes it):\n%s", document(), diff)
	}
}
