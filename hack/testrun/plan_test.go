// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPlan_CoreExists fails where a test of the core was renamed: make test would pass without it.
func TestPlan_CoreExists(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for pkg, tests := range core {
		found, err := onCluster(pkg, false).find(t.Context(), root)
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %v, %v", pkg, found, err)
		}
		for _, name := range tests {
			if !slices.Contains(found[0].tests, name) {
				t.Errorf("%s has no %s", pkg, name)
			}
		}
	}
}

// TestPlan_After fails where a stage would wait for ever: its lane's workers could all wait for what is behind them.
func TestPlan_After(t *testing.T) {
	for _, name := range []string{"core", "rest", "all"} {
		phases, err := plan(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range phases {
			free := map[string]int{} // the lanes of stages that wait for none
			for i, l := range p.lanes {
				for _, s := range l.stages {
					if s.after == "" {
						free[s.name] = i
					}
				}
			}
			for i, l := range p.lanes {
				for _, s := range l.stages {
					if at, ok := free[s.after]; s.after != "" && (!ok || at == i) {
						t.Errorf("%s: %s waits for %s, which no other lane runs", name, s.name, s.after)
					}
				}
			}
		}
	}
}

// TestPlan_RestIsTheRest checks that core and rest together run each end-to-end test once, and leave none out that all runs.
func TestPlan_RestIsTheRest(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	count := func(names ...string) map[string]int {
		counts := map[string]int{}
		for _, name := range names {
			phases, err := plan(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range phases[len(phases)-1].lanes {
				for _, s := range l.stages {
					found, err := s.find(t.Context(), root)
					if err != nil {
						t.Fatal(err)
					}
					for _, p := range found {
						for _, test := range p.tests {
							counts[p.path+" "+test]++
						}
					}
				}
			}
		}
		return counts
	}
	all, parts := count("all"), count("core", "rest")
	for test, n := range all {
		if parts[test] != n {
			t.Errorf("%s: %d times in core and rest, %d times in all", test, parts[test], n)
		}
	}
	if len(parts) != len(all) {
		t.Errorf("core and rest have %d tests, all has %d", len(parts), len(all))
	}
}

func TestChosen(t *testing.T) {
	for tests, want := range map[string]string{"core": "TestMPS_TwoServices", "^TestPlan_Core": "TestPlan_CoreExists"} {
		phases, err := plan("all")
		if err != nil {
			t.Fatal(err)
		}
		if phases, err = chosen(phases, tests); err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(phases[0].lanes[0].stages, func(s stage) bool { return s.name == tools.name }) {
			t.Errorf("%s: what tests need would not be built", tests)
		}
		matches := 0
		for _, l := range phases[len(phases)-1].lanes {
			for _, s := range l.stages {
				if len(s.command) > 0 {
					t.Errorf("%s: %s would run", tests, s.name)
				}
				if s.after != "" {
					t.Errorf("%s: %s would wait for %s", tests, s.name, s.after)
				}
				if s.only.MatchString(want) {
					matches++
				}
				if s.only.MatchString("TestOther") {
					t.Errorf("%s: TestOther would run", tests)
				}
			}
		}
		if matches == 0 {
			t.Errorf("%s: %s would not run", tests, want)
		}
	}
}

func TestRun_Usage(t *testing.T) {
	for want, args := range map[string][]string{
		"name one of":               nil,
		"there is no plan":          {"everything"},
		"say which tests to repeat": {"-runs", "3", "all"},
		"give a positive number":    {"-runs", "-3", "all"},
		"is no regular expression":  {"-tests", "(", "all"},
		"flag provided but not":     {"-nonsense", "all"},
	} {
		var out strings.Builder
		if _, err := run(t.Context(), args, &out); err == nil || !strings.Contains(err.Error(), want) || exitStatus(false, err) != 2 {
			t.Errorf("%v: error %v, want one with %q and status 2", args, err, want)
		}
	}
}
