// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// testSeed is that of the soak of every test run: a longer one, with others, is make soak. Its first 14 faults, which five minutes have on
// two processors, are those that no other test has beside each other: records corrupted, the Node made anew, gates off, claims held, a policy
// switched before Prepare, the disk full, the clock, a container that does not end, a reboot.
const testSeed = 77225

// What five minutes have on a slow machine, too.
const (
	leastClaims = 100
	leastFaults = 8
)

// TestSoak keeps a cluster under fire for five minutes.
func TestSoak(t *testing.T) {
	if os.Getenv("CLEAVE_E2E") != "1" {
		t.Skip("CLEAVE_E2E=1 runs this, as root, on a local Kubernetes of its own (make test-all)")
	}
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	report, err := Run(ctx, Options{
		Source: source, Dir: "/var/lib/cleave-soak", Duration: 5 * time.Minute, Seed: testSeed, Output: t.Output(),
		History: filepath.Join(source, "bin", "soak-history.jsonl"),
	})
	if report != nil {
		var text strings.Builder
		if err := report.Write(&text); err != nil {
			t.Error(err)
		}
		t.Log("\n" + text.String())
	}
	if err != nil {
		t.Fatal(err)
	}
	if !report.OK() {
		t.Errorf("%d violations and %d leaks", len(report.Violations), len(report.Leaks))
	}
	if report.Claims < leastClaims || report.Injected < leastFaults {
		t.Errorf("%d claims and %d faults in five minutes, want %d and %d at least: a machine as slow as this says little", report.Claims,
			report.Injected, leastClaims, leastFaults)
	}
}
