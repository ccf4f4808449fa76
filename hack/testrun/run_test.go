// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// module is a module with tests of every kind of end. Those of chance pass where their file is there, which the first run makes.
const module = `package chance

import (
	"os"
	"testing"
	"time"
)

func once(t *testing.T, name string) {
	if _, err := os.Stat(name); err != nil {
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		t.Fatal("by chance")
	}
}

func TestGood(t *testing.T) { t.Run("slow", func(*testing.T) { time.Sleep(50 * time.Millisecond) }) }
func TestSkipped(t *testing.T) { t.Skip("not here") }
`

// moduleWith is a runner in a new module with more tests, and the stage that runs them.
func moduleWith(t *testing.T, more string) (*runner, []phase, *strings.Builder) {
	t.Helper()
	root, out := t.TempDir(), &strings.Builder{}
	for name, text := range map[string]string{"go.mod": "module example.com/cleave/chance\n\ngo 1.26\n", "chance_test.go": module + more} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := &runner{root: root, logs: filepath.Join(root, "logs"), out: out, began: time.Now()}
	return r, []phase{{lanes: []lane{{workers: 1, stages: []stage{{name: "chance", packages: []string{"./..."}, fresh: true}}}}}}, out
}

func TestRunner(t *testing.T) {
	for name, tc := range map[string]struct {
		more   string
		passes bool
		says   []string
		never  string
	}{
		"all pass": {passes: true, says: []string{"\n1 passed, 0 failed, 1 skipped\n", "\nPassed after", "chance: TestGood (slow"}},
		"flaky": {
			more: `func TestChance(t *testing.T) { once(t, "a") }`, passes: true,
			says: []string{"Flaky:", "chance: TestChance", "again/1/output.log", "\n2 passed, 0 failed, 1 skipped\n"},
		},
		"flaky, as it ended the package": {
			more: `func TestPanic(t *testing.T) { defer func() { if t.Failed() { panic("end") } }(); once(t, "a") }
func TestAfterwards(*testing.T) {}`, passes: true,
			says: []string{"chance: TestPanic", "did not run (1 tests)"},
		},
		"more flaky tests than may be": {
			more: `func TestA(t *testing.T) { once(t, "a") }
func TestB(t *testing.T) { once(t, "b") }
func TestC(t *testing.T) { once(t, "c") }
func TestD(t *testing.T) { once(t, "d") }`, says: []string{"Flaky:", "chance: TestD", "\nFAILED after"},
		},
		"failed": {
			more: `func TestBad(t *testing.T) { t.Error("always") }`,
			says: []string{"Failed:", "logs/chance/chance.TestBad.log", "alone: go test -vet=off -count=1 -run '^(TestBad)$' ./chance", "    |     chance_test.go:20: always\n", "\n1 passed, 1 failed, 1 skipped\n", "\nFAILED after"},
		},
		"does not compile": {more: `func TestBad(t *testing.T) { nothing() }`, says: []string{"does not compile (3 tests)", "\nFAILED after"}, never: "once more"},
		"fails after its tests": {
			more: `func TestMain(m *testing.M) { m.Run(); os.Exit(1) }`, says: []string{"failed after its tests", "\nFAILED after"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, phases, out := moduleWith(t, tc.more)
			if err := r.run(t.Context(), phases); err != nil {
				t.Fatal(err)
			}
			passes, err := r.report(r.again(t.Context()))
			if err != nil {
				t.Fatal(err)
			}
			if passes != tc.passes {
				t.Errorf("passes: %t, want %t", passes, tc.passes)
			}
			for _, want := range tc.says {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q", want)
				}
			}
			if tc.never != "" && strings.Contains(out.String(), tc.never) {
				t.Errorf("has %q", tc.never)
			}
			if t.Failed() {
				t.Log(out)
			}
		})
	}
}

func TestRunner_LogOfFailure(t *testing.T) {
	r, phases, _ := moduleWith(t, `func TestBad(t *testing.T) { t.Error("said by the test") }`)
	if err := r.run(t.Context(), phases); err != nil || len(r.failures) != 1 {
		t.Fatalf("failures %v, error %v", r.failures, err)
	}
	if log, err := os.ReadFile(r.failures[0].log); err != nil || !strings.Contains(string(log), "said by the test") || strings.Contains(string(log), "TestGood") {
		t.Errorf("log %q, error %v", log, err)
	}
}

func TestRunner_NeededFails(t *testing.T) {
	r, tests, out := moduleWith(t, "")
	build := phase{needed: true, lanes: []lane{{workers: 1, stages: []stage{command("build", "false")}}}}
	if err := r.run(t.Context(), append([]phase{build}, tests...)); err == nil || strings.Contains(out.String(), "TestGood") {
		t.Errorf("error %v; %s", err, out)
	}
}

func TestRunner_After(t *testing.T) {
	root := t.TempDir()
	r := &runner{root: root, logs: filepath.Join(root, "logs"), out: &strings.Builder{}, began: time.Now()}
	build, needs := command("build", "sh", "-c", "sleep 0.3; touch built"), command("needs", "test", "-e", "built")
	needs.after = build.name
	lanes := []lane{{workers: 1, stages: []stage{needs}}, {workers: 1, stages: []stage{build}}}
	if err := r.run(t.Context(), []phase{{lanes: lanes}}); err != nil || len(r.failures) > 0 {
		t.Errorf("failures %v, error %v", r.failures, err)
	}
}

// A lane that is done helps nice ones: without that, what waits here would wait for ever.
func TestRunner_Helps(t *testing.T) {
	root := t.TempDir()
	r := &runner{root: root, logs: filepath.Join(root, "logs"), out: &strings.Builder{}, began: time.Now()}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lanes := []lane{
		{workers: 1, nice: true, stages: []stage{command("waits", "sh", "-c", "until test -e made; do sleep 0.05; done"), command("makes", "touch", "made")}},
		{workers: 1, stages: []stage{command("done", "true")}},
	}
	if err := r.run(ctx, []phase{{lanes: lanes}}); err != nil || len(r.failures) > 0 {
		t.Errorf("failures %v, error %v", r.failures, err)
	}
}

func TestRunner_Repeats(t *testing.T) {
	r, phases, out := moduleWith(t, `func TestChance(t *testing.T) { once(t, "a") }`)
	if err := r.repeat(t.Context(), append([]phase{{}}, phases...), 3, func() func() { return func() {} }); err != nil {
		t.Fatal(err)
	}
	if r.counts(3) {
		t.Error("no failure counted")
	}
	for _, want := range []string{"3 passed,   0 failed  chance: TestGood", "2 passed,   1 failed  chance: TestChance"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
}

// TestRunner_Interrupted ends with the test that runs, and calls nothing a failure.
func TestRunner_Interrupted(t *testing.T) {
	r, phases, _ := moduleWith(t, `func TestSleeps(t *testing.T) {
	if err := os.WriteFile("sleeps", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Hour)
}`)
	ctx, cancel := context.WithCancel(t.Context())
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	go func() {
		defer cancel()
		for !exists(filepath.Join(r.root, "sleeps")) && t.Context().Err() == nil {
			<-look.C
		}
	}()
	if err := r.run(ctx, phases); !errors.Is(err, context.Canceled) || len(r.failures) > 0 {
		t.Errorf("error %v, failures %v", err, r.failures)
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
