// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReport(t *testing.T) {
	c := newTally(io.Discard, 3)
	for i := range 100 {
		c.recovered(Fault{Kind: PluginKilled}, time.Duration(100-i)*time.Second)
	}
	c.recovered(Fault{Kind: NodeRebooted}, time.Minute)
	c.recovered(Fault{Kind: NodeRebooted, Meanwhile: PluginKilled}, 2*time.Minute)
	c.podCreated()
	c.claimsHad(4)
	slices, mps := Shape{Name: "slices", Claims: []Ask{AskSlice}}, Shape{Name: "mps", Claims: []Ask{AskSlice, AskMPS}}
	c.pardonPods(NodeRebooted.ends(), true)
	c.podEnded("there-meanwhile", slices, time.Now(), "")
	c.pardonPods(NodeRebooted.ends(), false)
	c.podEnded("there-before", mps, time.Now().Add(-time.Hour), "")
	c.podEnded("pod-1", mps, time.Now().Add(time.Second), "exit code 137")
	c.pardonPods(PluginKilled.ends(), true)
	c.podEnded("pod-2", mps, time.Now().Add(time.Second), "exit code 1")
	c.pardonPods(PluginKilled.ends(), false)
	c.pardonPods(MPSDaemonKilled.ends(), true)
	c.podEnded("client", mps, time.Now(), "")
	c.podEnded("pod-3", slices, time.Now().Add(time.Second), "exit code 2")
	c.pardonPods(MPSDaemonKilled.ends(), false)
	c.pardonPods(DriverReloaded.ends(), true)
	c.podEnded("starts-meanwhile", mps, time.Now(), "exit code 1")
	c.podEnded("pod-4", slices, time.Now().Add(time.Second), "exit code 1")
	c.pardonPods(DriverReloaded.ends(), false)
	c.podRefused("has no share")
	c.podEnded("has no share", slices, time.Now().Add(time.Second), "it is gone")
	got := c.report(time.Hour, []string{"+ partition"})
	for i, want := range []string{"pod-1 ended, and there was no fault that ends them: exit code 137", "pod-2 ended", "pod-3 ended", "pod-4 ended"} {
		if len(got.Violations) != 4 || !strings.Contains(got.Violations[i], want) {
			t.Errorf("violations: %q, want those of pod-1 to pod-4", got.Violations)
		}
	}
	got.Violations = nil
	want := &Report{Seed: 3, Seconds: 3600, Pods: 1, Claims: 4, PodsEnded: 5, Injected: 103, Twofold: FaultReport{twofold, 1, Recovery{120, 120}}, Own: Recovery{P50: 50, P99: 99},
		Faults: []FaultReport{{PluginKilled, 101, Recovery{50, 99}}, {NodeRebooted, 2, Recovery{60, 60}}}, Leaks: []string{"+ partition"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	if got.OK() || !(&Report{}).OK() {
		t.Error("a report with a leak is good, or one without is not")
	}
	var text bytes.Buffer
	if err := got.Write(&text); err != nil {
		t.Fatal(err)
	}
	for _, says := range []string{"plugin killed", "101", "50.0 s", "99.0 s", "two at a time", "seed 3", "leak: + partition"} {
		if !strings.Contains(text.String(), says) {
			t.Errorf("the report does not say %q:\n%s", says, text.String())
		}
	}
}

func TestReport_Missed(t *testing.T) {
	good := Report{Seconds: 3600, Claims: 5000, Random: RandomClaims{Ran: 60}, Preempted: 90, Collided: 90, Injected: 200, Own: Recovery{P99: 30}}
	tests := map[string]struct {
		change func(*Report)
		want   []string
	}{
		"all met":          {func(*Report) {}, nil},
		"too few claims":   {func(r *Report) { r.Claims = 4999 }, []string{"4999 claims in 1.0 hours, want 5000 an hour"}},
		"of three hours":   {func(r *Report) { r.Seconds, r.Claims, r.Random.Ran = 3*3600, 15000, 180 }, []string{"200 faults in 3.0 hours, want 200 an hour"}},
		"no random claim":  {func(r *Report) { r.Random.Ran = 0 }, []string{"pods ran with 0 random claims in 1.0 hours, want 60 an hour"}},
		"nobody preempted": {func(r *Report) { r.Preempted = 0 }, []string{"0 pods were evicted for urgent ones in 1.0 hours, want 30 an hour"}},
		"few collisions": {func(r *Report) { r.Collided = 29 }, []string{
			"29 pods were evicted as their devices had been allocated twice in 1.0 hours, want 30 an hour"}},
		"slow recovery":    {func(r *Report) { r.Own.P99 = 40.1 }, []string{"recovery from faults of Cleave's own programs took 40.1 s (p99), want 40 s at most"}},
		"minutes say less": {func(r *Report) { *r = Report{Seconds: 3599} }, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := good
			tt.change(&r)
			if diff := cmp.Diff(tt.want, r.Missed()); diff != "" {
				t.Errorf("missed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestChanges(t *testing.T) {
	before := []string{"a", "b", "b", "c"}
	got := changes(before, []string{"a", "b", "c", "c", "d"})
	if diff := cmp.Diff([]string{"+ c", "+ d", "- b"}, got); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if got := changes(before, before); len(got) > 0 {
		t.Errorf("nothing changed, and %v is reported", got)
	}
}
