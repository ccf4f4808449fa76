// SPDX-License-Identifier: Apache-2.0

package repacking

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/pkg/tools/repack"
)

var (
	start  = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	limits = Limits{Eviction: 5 * time.Minute, Replacement: 10 * time.Minute}
	there  = repack.Place{Node: "n1", Devices: []string{"b", "a"}}
)

// replacement is a pod that is ready, but for changes.
func replacement(at *repack.Place, change ...func(*corev1.Pod)) Replacement {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "web-2"}, Status: corev1.PodStatus{
		Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
	for _, c := range change {
		c(p)
	}
	return Replacement{p, at}
}

func TestNext(t *testing.T) {
	old := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "web-1"}}
	ending := old.DeepCopy()
	ending.DeletionTimestamp = &metav1.Time{Time: start}
	other := repack.Place{Node: "n1", Devices: []string{"a", "c"}}
	pending := func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes are available"}}}
	}
	for name, tt := range map[string]struct {
		evicted bool
		seen    Seen
		after   time.Duration
		do      Action
		reason  Reason
		says    string
	}{
		"begin":             {false, Seen{Old: old}, 0, Evict, "", ""},
		"gone":              {false, Seen{}, 0, Halt, Changed, "pod ml/web-1 is gone"},
		"deleted by others": {false, Seen{Old: ending}, 0, Halt, Changed, "another client deletes"},
		"scaled up":         {false, Seen{Old: old, New: []Replacement{replacement(nil)}}, 0, Halt, Changed, "created pod web-2"},
		"budget":            {false, Seen{Old: old, Refused: "budget"}, 5 * time.Minute, Evict, "", "budget"},
		"budget for ever":   {false, Seen{Old: old, Refused: "budget"}, 5*time.Minute + 1, Halt, Refused, "refused since 5m0s: budget"},
		"ending":            {true, Seen{Old: ending, New: []Replacement{replacement(&there)}}, 0, Wait, "", "the pod to end"},
		"claims":            {true, Seen{Held: true, New: []Replacement{replacement(&there)}}, 0, Wait, "", "deallocated"},
		"no replacement":    {true, Seen{}, time.Minute, Wait, "", "Deployment/web to create"},
		"never one":         {true, Seen{}, 11 * time.Minute, Halt, Timeout, "evicted 10m30s ago, and the repack still waits for Deployment/web"},
		"not yet":           {true, Seen{}, 10*time.Minute + 30*time.Second, Wait, "", ""},
		"unscheduled":       {true, Seen{New: []Replacement{replacement(nil, pending)}}, 0, Wait, "", "0/2 nodes"},
		"starts": {true, Seen{New: []Replacement{replacement(&there, func(p *corev1.Pod) { p.Status.Conditions = nil })}}, 0, Wait, "",
			"to be ready"},
		"never starts": {true, Seen{New: []Replacement{replacement(&there, func(p *corev1.Pod) { p.Status.Conditions = nil })}}, time.Hour, Halt,
			Timeout, "web-2, to be ready"},
		"runs":                {true, Seen{New: []Replacement{replacement(&there)}}, 0, Done, "", "runs at n1 b, a"},
		"in another order":    {true, Seen{New: []Replacement{replacement(&repack.Place{Node: "n1", Devices: []string{"a", "b"}})}}, 0, Done, "", ""},
		"on the other node":   {true, Seen{New: []Replacement{replacement(&repack.Place{Node: "n2", Devices: []string{"any"}})}}, 0, Done, "", ""},
		"runs late":           {true, Seen{New: []Replacement{replacement(&there)}}, time.Hour, Done, "", ""},
		"elsewhere":           {true, Seen{Old: ending, New: []Replacement{replacement(&other)}}, 0, Halt, Elsewhere, "is at n1 a, c, and n1 b, a or n2 was planned"},
		"elsewhere, starting": {true, Seen{New: []Replacement{replacement(&other, pending)}}, 0, Halt, Elsewhere, ""},
		"two":                 {true, Seen{New: []Replacement{replacement(&there), replacement(nil)}}, 0, Halt, Changed, "created 2 pods"},
		"ended": {true, Seen{New: []Replacement{replacement(&there, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })}}, 0, Halt, Changed,
			"has ended: Failed"},
		"deleted": {true, Seen{New: []Replacement{replacement(&there, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} })}}, 0, Halt,
			Changed, "is deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			a := Attempt{Began: start, Grace: 30 * time.Second,
				Move: repack.Move{Namespace: "ml", Pod: "web-1", Controller: "Deployment/web", To: there, Or: []repack.Place{{Node: "n2"}}}}
			if tt.evicted {
				a.Evicted = start
			}
			tt.seen.Now = start.Add(tt.after)
			got := a.Next(tt.seen, limits)
			if got.Do != tt.do || got.Reason != tt.reason || !strings.Contains(got.Message, tt.says) {
				t.Errorf("got %+v, want %s %s %q", got, tt.do, tt.reason, tt.says)
			}
		})
	}
}

func TestWindow(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	at := func(text string) time.Time {
		t.Helper()
		when, err := time.ParseInLocation("Mon 2006-01-02 15:04", text, berlin)
		if err != nil {
			t.Fatal(err)
		}
		return when.UTC()
	}
	for text, times := range map[string]map[string]bool{
		"Mon-Fri 22:00-06:00": {"Mon 2026-03-02 22:00": true, "Mon 2026-03-02 21:59": false, "Mon 2026-03-02 05:00": false,
			"Sat 2026-03-07 05:59": true, "Sat 2026-03-07 06:00": false, "Sat 2026-03-07 23:00": false},
		"sat,Sun 00:00-24:00": {"Sat 2026-03-07 00:00": true, "Sun 2026-03-08 23:59": true, "Mon 2026-03-09 00:00": false, "Fri 2026-03-06 23:59": false},
		"02:00-04:30":         {"Sun 2026-03-08 02:00": true, "Sun 2026-03-08 04:30": false, "Sun 2026-03-29 03:10": true}, // 02:00 to 03:00 is left out
		"Fri-Mon 10:00-11:00": {"Sun 2026-03-08 10:30": true, "Tue 2026-03-03 10:30": false},
	} {
		w, err := ParseWindow(text)
		if err != nil {
			t.Fatal(err)
		}
		p := Permit{Windows: []Window{w}, Zone: berlin}
		for when, open := range times {
			if why := p.Refuses(at(when), 0, 1); (why == "") != open {
				t.Errorf("%q at %s: %q, want open: %t", text, when, why, open)
			}
		}
	}
	for _, text := range []string{"", "Mon", "Mon-Fry 10:00-11:00", "Mon 10:00", "Mon 10-11", "Mon 24:00-10:00", "Mon 10:00-10:00", "Mon 10:00-24:30", "a b c"} {
		if w, err := ParseWindow(text); err == nil {
			t.Errorf("%q is %+v, want an error", text, w)
		}
	}
}

func TestPermit_Budget(t *testing.T) {
	p := Permit{PerHour: 5}
	for lastHour, want := range map[int]string{3: "", 4: "4 pods were evicted in the last hour, of 5 that may be, and this step has 2"} {
		if got := p.Refuses(start, lastHour, 2); got != want {
			t.Errorf("after %d: %q, want %q", lastHour, got, want)
		}
	}
}

func TestPauseAfter(t *testing.T) {
	for surprises, want := range map[int]time.Duration{0: time.Minute, 1: 2 * time.Minute, 6: 64 * time.Minute, 99: 64 * time.Minute} {
		if got := pauseAfter(time.Minute, surprises); got != want {
			t.Errorf("after %d surprises: %s, want %s", surprises, got, want)
		}
	}
}
