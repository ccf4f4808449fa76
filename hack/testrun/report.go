// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// slowest is how many of the slowest tests are named.
const slowest = 10

// What is repeated of a failure's log: its last lines, each of at most so many bytes.
const (
	lastLines = 15
	lineBytes = 400
)

// report says how the run ended, and writes it to summary.txt beside the logs. It reports whether the run passed.
func (r *runner) report(chance []flaky, lasting []failure) (bool, error) {
	var b strings.Builder
	slices.SortStableFunc(r.results, func(a, b timed) int { return int(b.elapsed - a.elapsed) })
	fmt.Fprintf(&b, "\nThe slowest tests:\n")
	for _, t := range r.results[:min(slowest, len(r.results))] {
		fmt.Fprintf(&b, "  %6s  %s: %s", seconds(t.elapsed), t.stage, t.name)
		if where := t.where(); where != "" {
			fmt.Fprintf(&b, " (%s)", where)
		}
		b.WriteString("\n")
	}
	if len(chance) > 0 {
		fmt.Fprintf(&b, "\nFlaky: failed, and passed when run alone (at most %d may be). Each is a fault to mend;\n"+
			"make test-all RUNS=10 TESTS=NAME repeats it under load:\n", maxFlaky)
		for _, f := range chance {
			fmt.Fprintf(&b, "  %s\n    failed: %s\n    passed: %s\n", f, f.log, f.passed)
		}
	}
	if len(lasting) > 0 {
		b.WriteString("\nFailed:\n")
		for _, f := range lasting {
			fmt.Fprintf(&b, "  %s\n    log:   %s\n    alone: %s\n", f, f.log, f.stage.again(f.pkg, f.tests))
			for _, line := range ending(f.log) {
				fmt.Fprintf(&b, "    | %s\n", line)
			}
		}
		if len(lasting) > maxAgain {
			fmt.Fprintf(&b, "  None was run again: more than %d are no chance.\n", maxAgain)
		}
	}
	passes := len(lasting) == 0 && len(chance) <= maxFlaky
	ended := map[result]int{}
	for _, t := range r.results {
		ended[t.result]++
	}
	// What did not run is in the failures only.
	good, bad := ended[passed], 0
	for _, f := range chance {
		good += len(f.tests)
	}
	for _, f := range lasting {
		bad += max(1, len(f.tests))
	}
	fmt.Fprintf(&b, "\n%d passed, %d failed, %d skipped\n", good, bad, ended[skipped])
	verdict := "Passed"
	if !passes {
		verdict = "FAILED"
	}
	fmt.Fprintf(&b, "%s after %s; logs are in %s\n", verdict, time.Since(r.began).Round(time.Second), r.logs)
	fmt.Fprint(r.out, b.String())
	return passes, os.WriteFile(filepath.Join(r.logs, "summary.txt"), []byte(b.String()), 0o644)
}

// ending is the end of a log: where only the summary is kept of a run, it says why a test failed.
func ending(log string) []string {
	text, err := os.ReadFile(log)
	if err != nil {
		return []string{err.Error()}
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	lines = lines[max(0, len(lines)-lastLines):]
	for i, line := range lines {
		if len(line) > lineBytes {
			lines[i] = line[:lineBytes] + "..."
		}
	}
	return lines
}

// counts says how often each test passed and failed in repeated runs, and reports whether none failed.
func (r *runner) counts(runs int) bool {
	var names []string
	ended := map[string]map[result]int{}
	for _, t := range r.results {
		name := t.stage + ": " + t.name
		if ended[name] == nil {
			names, ended[name] = append(names, name), map[result]int{}
		}
		ended[name][t.result]++
	}
	slices.Sort(names)
	fmt.Fprintf(r.out, "\n%d runs beside a busy loop on each processor:\n", runs)
	for _, name := range names {
		fmt.Fprintf(r.out, "  %3d passed, %3d failed  %s\n", ended[name][passed], ended[name][failed], name)
	}
	for _, f := range r.failures {
		fmt.Fprintf(r.out, "  failed: %s\n    log: %s\n", f, f.log)
	}
	fmt.Fprintf(r.out, "%s; logs are in %s\n", time.Since(r.began).Round(time.Second), r.logs)
	return len(r.failures) == 0
}
