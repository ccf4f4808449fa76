// SPDX-License-Identifier: Apache-2.0

// Package broken shows that the checker of histories finds what it is there for: it checks histories of builds of Cleave that
// lack one of the precautions on which its promises rest.
package broken

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/e2e/history"
)

var (
	seed  = flag.Uint64("seed", 1, "seed of the first history")
	seeds = flag.Uint64("seeds", 2, "how many histories of each build")
)

// breaks are what a broken build may leave out where CLEAVE_BROKEN says so: statements put into files of the product, at the start
// of a function.
var breaks = []struct{ file, function, statement string }{
	{"pkg/domain/store/boot.go", "func BootID(procfs string) (string, error) {", `if os.Getenv("CLEAVE_BROKEN") == "boot" {
		return "any", nil
	}`},
	{"pkg/driver/claims/locks.go", "func (l *Locks) Acquire(ctx context.Context, names []string) (*Held, error) {", `if os.Getenv("CLEAVE_BROKEN") == "locks" {
		return &Held{}, nil
	}`},
	{"pkg/driver/claims/record.go", "func (a *preparation) record() error {", `if os.Getenv("CLEAVE_BROKEN") == "record" {
		return nil
	}`},
}

// overlay is a file for go build -overlay, by which the product's files are the broken ones.
func overlay(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	dir, replaced := t.TempDir(), map[string]string{}
	for i, b := range breaks {
		original := filepath.Join(root, b.file)
		text, err := os.ReadFile(original)
		if err != nil {
			t.Fatal(err)
		}
		before, after, found := strings.Cut(string(text), b.function+"\n")
		if !found {
			t.Fatalf("%s has no %q to break", b.file, b.function)
		}
		broken := before + b.function + "\n\t" + b.statement + "\n" + after
		if !strings.Contains(broken, "\t\"os\"\n") {
			broken = strings.Replace(broken, "import (\n", "import (\n\t\"os\"\n", 1)
		}
		replaced[original] = filepath.Join(dir, fmt.Sprintf("%d.go", i))
		if err := os.WriteFile(replaced[original], []byte(broken), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// build builds the plugin and names it as the product is.
func build(t *testing.T, flags ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "cleave-node")
	args := append(append([]string{"build", "-trimpath", "-o", program}, flags...), "./plugin")
	if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return program
}

func TestCheck_BrokenBuilds(t *testing.T) {
	if testing.Short() {
		t.Skip("builds two programs, and starts some hundred processes")
	}
	right, broken := build(t), build(t, "-overlay", overlay(t))
	for _, tc := range []struct {
		name, program, lacks string
		// rule that is broken in each history.
		rule history.Rule
	}{
		{name: "right", program: right},
		{name: "right, whatever the environment says", program: right, lacks: "record"},
		{name: "nothing left out", program: broken},
		{name: "locks off", program: broken, lacks: "locks", rule: history.RuleDevice},
		{name: "record written after hardware", program: broken, lacks: "record", rule: history.RuleRelease},
		{name: "boot id ignored", program: broken, lacks: "boot", rule: history.RuleUnmanaged},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for s := *seed; s < *seed+*seeds; s++ {
				found := violations(t, tc.program, tc.lacks, s)
				t.Logf("seed %d: %d violations", s, len(found))
				if tc.rule == "" {
					for _, v := range found {
						t.Errorf("seed %d: %s", s, v)
					}
					continue
				}
				if !slices.ContainsFunc(found, func(v history.Violation) bool { return v.Rule == tc.rule }) {
					t.Errorf("seed %d: no violation of rule %s: %v", s, tc.rule, found)
					continue
				}
				t.Logf("seed %d: %s", s, found[0])
			}
		})
	}
}

// One seed is one history.
func TestCheck_BrokenBuildsBySeed(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	broken := build(t, "-overlay", overlay(t))
	for _, lacks := range []string{"locks", "record", "boot"} {
		first, again := violations(t, broken, lacks, *seed), violations(t, broken, lacks, *seed)
		if diff := cmp.Diff(timeless(first), timeless(again)); diff != "" {
			t.Errorf("violations without %s by seed %d (-once +again):\n%s", lacks, *seed, diff)
		}
	}
}

// duration is one as time.Duration prints it.
var duration = regexp.MustCompile(`([0-9]+h)?([0-9]+m)?[0-9.]+[mµn]?s\b`)

// timeless are violations without the times, which differ.
func timeless(found []history.Violation) []string {
	var texts []string
	for _, v := range found {
		texts = append(texts, duration.ReplaceAllString(v.String(), "T"))
	}
	return texts
}

func TestTimeless(t *testing.T) {
	for _, at := range []time.Duration{
		0, 7, 4 * time.Microsecond, 1500 * time.Microsecond, 3200 * time.Millisecond, time.Minute, 63200 * time.Millisecond,
		time.Hour, time.Hour + 2*time.Minute + 3*time.Second,
	} {
		got := timeless([]history.Violation{{Rule: "r", Text: fmt.Sprintf("At %s claim c-0 was unprepared. At %s it ran.", at, at)}})
		if diff := cmp.Diff([]string{"r: At T claim c-0 was unprepared. At T it ran."}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", at, diff)
		}
	}
}

func violations(t *testing.T, program, lacks string, seed uint64) []history.Violation {
	t.Helper()
	h := run(t, program, lacks, seed)
	// Whatever is released here is free once the plugin has said so: there is nobody to wait for.
	return history.Check(h, history.Limits{Release: time.Nanosecond})
}

// keepHistory says where a history is that is to be looked at.
func keepHistory(t *testing.T, file string) {
	if dir := os.Getenv("CLEAVE_HISTORY_DIR"); dir != "" {
		data, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "-")+".jsonl"), data, 0o600)
		}
		if err != nil {
			t.Error(err)
		}
	}
}
