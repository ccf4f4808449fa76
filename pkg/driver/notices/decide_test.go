// SPDX-License-Identifier: Apache-2.0

package notices

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// begin is when the tests begin.
var begin = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// at is a time of the tests.
func at(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }

// brief is a decision in a line: source/ID, deadline and eviction in seconds, and whether it evicts.
func brief(d Decision) string {
	if !d.Holds() {
		return ""
	}
	text := d.Source + "/" + d.ID
	for _, t := range []struct {
		name string
		at   time.Time
	}{{"at", d.Deadline}, {"evict at", d.EvictAt}} {
		if !t.at.IsZero() {
			text += fmt.Sprintf(" %s %d", t.name, int(t.at.Sub(begin).Seconds()))
		}
	}
	if d.Evict {
		text += " now"
	}
	return text
}

func TestDecide(t *testing.T) {
	spot := func(seconds int) Standing {
		return Standing{Notice: Notice{Source: AWS, ID: "spot", Kind: Reclaim, At: at(seconds)}, Since: at(0), Seen: at(0)}
	}
	reboot := func(seconds int) Standing {
		return Standing{Notice: Notice{Source: AWS, ID: "e-1", Kind: Maintenance, At: at(seconds)}, Since: at(0), Seen: at(0)}
	}
	preempted := Standing{Notice: Notice{Source: GCE, ID: "preempted", Kind: Reclaim, Within: 30 * time.Second}, Since: at(0), Seen: at(0)}
	drain := Standing{Notice: Notice{Source: Node, ID: "karpenter.sh/disrupted", Kind: Reclaim}, Since: at(0), Seen: at(0)}
	never, evicts := Policy{Lead: time.Hour}, Policy{Lead: time.Hour, EvictBefore: time.Minute}
	evicting := Decision{Source: AWS, ID: "spot", Kind: Reclaim, Since: at(0), Deadline: at(120), EvictAt: at(60), Evict: true}
	for name, tt := range map[string]struct {
		was      Decision
		standing []Standing
		policy   Policy
		now      int
		want     string
		next     int // seconds; zero for never
	}{
		"none":                          {Decision{}, nil, evicts, 0, "", 0},
		"spot, nobody is evicted":       {Decision{}, []Standing{spot(120)}, never, 0, "aws/spot at 120", 3720},
		"spot, grace":                   {Decision{}, []Standing{spot(120)}, evicts, 0, "aws/spot at 120 evict at 60", 60},
		"spot, grace over":              {Decision{}, []Standing{spot(120)}, evicts, 60, "aws/spot at 120 evict at 60 now", 3720},
		"spot, less notice than that":   {Decision{}, []Standing{spot(20)}, evicts, 0, "aws/spot at 20 evict at 0 now", 3620},
		"no time is promised":           {Decision{}, []Standing{drain}, evicts, 1000, "node/karpenter.sh/disrupted", 0},
		"a promised time":               {Decision{}, []Standing{preempted}, Policy{Lead: time.Hour, EvictBefore: 20 * time.Second}, 5, "gce/preempted at 30 evict at 10", 10},
		"maintenance in two hours":      {Decision{}, []Standing{reboot(7200)}, evicts, 0, "", 3600},
		"maintenance within the lead":   {Decision{}, []Standing{reboot(7200)}, evicts, 3600, "aws/e-1 at 7200 evict at 7140", 7140},
		"the machine outlived it":       {Decision{}, []Standing{reboot(0)}, evicts, 3600, "", 0},
		"a little longer":               {Decision{}, []Standing{reboot(0)}, never, 3599, "aws/e-1 at 0", 3600},
		"the earliest decides":          {Decision{}, []Standing{drain, reboot(300), spot(120)}, never, 0, "aws/spot at 120", 3720},
		"at the same time, the worse":   {Decision{}, []Standing{reboot(120), spot(120)}, never, 0, "aws/spot at 120", 3720},
		"put off: eviction goes on":     {evicting, []Standing{spot(600)}, evicts, 61, "aws/spot at 600 evict at 540 now", 540},
		"withdrawn: eviction ends":      {evicting, []Standing{reboot(600)}, evicts, 61, "aws/e-1 at 600 evict at 540", 540},
		"evicts no more, by new policy": {evicting, []Standing{spot(120)}, never, 61, "aws/spot at 120", 3720},
		"all are over":                  {evicting, nil, evicts, 61, "", 0},
	} {
		got, next := Decide(tt.was, tt.standing, tt.policy, at(tt.now))
		var wantNext time.Time
		if tt.next != 0 {
			wantNext = at(tt.next)
		}
		if diff := cmp.Diff(tt.want, brief(got)); diff != "" || !next.Equal(wantNext) {
			t.Errorf("%s: next %v, want %v; decision (-want +got):\n%s", name, next, wantNext, diff)
		}
	}
}

func TestLearn(t *testing.T) {
	spot := Notice{ID: "spot", Kind: Reclaim, At: at(120), Text: "t"}
	started := Notice{ID: "spot", Kind: Reclaim, Within: time.Second, Text: "t"}
	long := Notice{ID: strings.Repeat("x", 1000), Kind: Reclaim, Text: "a\x1b[31m\nb\xff " + strings.Repeat("y", 1000)}
	var many []Notice
	for i := range 40 {
		many = append(many, Notice{ID: fmt.Sprintf("%02d", 39-i)})
	}
	broken := errors.New("timeout")
	type said struct {
		second  int
		source  string
		notices []Notice
		err     error
	}
	for name, tt := range map[string]struct {
		said []said
		want []string // source/ID since seen deadline
	}{
		"nothing":                     {[]said{{0, AWS, nil, nil}}, nil},
		"a notice":                    {[]said{{0, AWS, []Notice{spot}, nil}}, []string{"aws/spot 0 0 120"}},
		"repeated":                    {[]said{{0, AWS, []Notice{spot}, nil}, {9, AWS, []Notice{spot}, nil}}, []string{"aws/spot 0 9 120"}},
		"not repeated for a moment":   {[]said{{0, AWS, []Notice{spot}, nil}, {29, AWS, nil, nil}}, []string{"aws/spot 0 0 120"}},
		"withdrawn":                   {[]said{{0, AWS, []Notice{spot}, nil}, {30, AWS, nil, nil}}, nil},
		"comes and goes":              {[]said{{0, AWS, []Notice{spot}, nil}, {20, AWS, nil, nil}, {25, AWS, []Notice{spot}, nil}, {45, AWS, nil, nil}}, []string{"aws/spot 0 25 120"}},
		"another source says nothing": {[]said{{0, AWS, []Notice{spot}, nil}, {60, GCE, nil, nil}}, []string{"aws/spot 0 0 120"}},
		"the source fails":            {[]said{{0, AWS, []Notice{spot}, nil}, {60, AWS, nil, broken}}, []string{"aws/spot 0 0 120"}},
		"the source fails for long":   {[]said{{0, AWS, []Notice{spot}, nil}, {719, AWS, nil, broken}}, []string{"aws/spot 0 0 120"}},
		"the source fails for good":   {[]said{{0, AWS, []Notice{spot}, nil}, {720, AWS, nil, broken}}, nil},
		"the source fails in part":    {[]said{{0, AWS, []Notice{spot}, broken}}, []string{"aws/spot 0 0 120"}},
		"started, without a time":     {[]said{{0, Azure, []Notice{spot}, nil}, {100, Azure, []Notice{started}, nil}}, []string{"azure/spot 0 100 120"}},
		"started before it was seen":  {[]said{{7, Azure, []Notice{started}, nil}}, []string{"azure/spot 7 7 8"}},
		"two sources":                 {[]said{{0, GCE, []Notice{spot}, nil}, {1, AWS, []Notice{spot}, nil}}, []string{"aws/spot 1 1 120", "gce/spot 0 0 120"}},
	} {
		var standing []Standing
		for _, s := range tt.said {
			standing = Learn(standing, Answer{s.source, s.notices, s.err}, at(s.second))
		}
		var got []string
		for _, s := range standing {
			got = append(got, fmt.Sprintf("%s/%s %d %d %d", s.Source, s.ID, int(s.Since.Sub(begin).Seconds()), int(s.Seen.Sub(begin).Seconds()),
				int(s.Deadline().Sub(begin).Seconds())))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if got := Learn(nil, Answer{AWS, many, nil}, begin); len(got) != maxNotices || got[0].ID != "00" {
		t.Errorf("%d notices are kept, the first is %q; want %d, 00", len(got), got[0].ID, maxNotices)
	}
	got := Learn(nil, Answer{AWS, []Notice{long}, nil}, begin)[0]
	if len([]rune(got.ID)) != maxText || len([]rune(got.Text)) != maxText || !strings.HasPrefix(got.Text, "a [31m b? yyy") {
		t.Errorf("got ID of %d characters, text %q; want both bounded and printable", len([]rune(got.ID)), got.Text)
	}
}

func TestDecision_Advice(t *testing.T) {
	d := Decision{Source: AWS, ID: "spot", Kind: Reclaim, Text: "spot interruption, terminate", Since: at(0), Deadline: at(120), EvictAt: at(60)}
	ends := ". New claims get no devices of the node"
	head := "The node's machine is taken away at 2026-03-01T12:02:00Z (aws: spot interruption, terminate), "
	for name, tt := range map[string]struct {
		change func(d *Decision)
		now    int
		want   string
	}{
		"grace": {func(*Decision) {}, 2, head + "1m58s left. Pods with devices of the node are evicted at 2026-03-01T12:01:00Z, unless their claims " +
			"tolerate that" + ends},
		"eviction": {func(d *Decision) { d.Evict = true }, 60, head + "1m0s left. Pods with devices of the node are evicted now, with their own " +
			"grace period, unless their claims tolerate that" + ends},
		"no eviction": {func(d *Decision) { d.EvictAt = time.Time{} }, 130, head + "0s left. Cleave evicts no pods: those with devices of the " +
			"node run until they are drained or the machine goes" + ends},
		"no time": {func(d *Decision) { d.EvictAt, d.Deadline, d.Kind = time.Time{}, time.Time{}, Maintenance }, 0, "The node's machine is stopped or " +
			"restarted (aws: spot interruption, terminate). Cleave evicts no pods: those with devices of the node run until they are drained or " +
			"the machine goes" + ends},
	} {
		changed := d
		tt.change(&changed)
		if diff := cmp.Diff(tt.want, changed.Advice(at(tt.now))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
