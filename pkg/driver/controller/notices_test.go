// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/driver/notices"
)

func TestDesired_Notices(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.NoticePolicy = notices.Policy{Lead: time.Hour, EvictBefore: time.Minute}
	b.step(Inventory | Policies)
	b.heard()
	all := 0
	for i := range b.Inventory.GPUs {
		all += len(b.every(i))
	}
	spot := func(at time.Duration) []notices.Standing {
		return []notices.Standing{{Since: start, Seen: start,
			Notice: notices.Notice{Source: notices.AWS, ID: "spot", Kind: notices.Reclaim, At: start.Add(at), Text: "spot interruption"}}}
	}
	for _, tt := range []struct {
		name     string
		after    time.Duration // from the start
		standing []notices.Standing
		taint    string
		devices  int
		events   []string
		look     time.Duration // the next look from now; zero for never
	}{
		{"nothing", 0, nil, "", 0, nil, 0},
		{"far away", 0, spot(2 * time.Hour), "", 0, nil, time.Hour},
		{"grace", 0, spot(2 * time.Minute), "reclaim:", all, []string{"Warning NodeNotice"}, noticeEvery},
		{"grace goes on", 58 * time.Second, spot(2 * time.Minute), "reclaim:", all, nil, 2 * time.Second},
		{"eviction", time.Minute, spot(2 * time.Minute), "reclaim:NoExecute", all, []string{"Warning NodeNoticeEviction"}, noticeEvery},
		{"eviction goes on", 90 * time.Second, spot(2 * time.Minute), "reclaim:NoExecute", all, nil, noticeEvery},
		{"put off", 90 * time.Second, spot(time.Hour), "reclaim:NoExecute", all, []string{"Warning NodeNotice"}, noticeEvery},
		{"withdrawn", 100 * time.Second, nil, "", 0, []string{"Normal NodeNoticeWithdrawn"}, 0},
		{"still withdrawn", 101 * time.Second, nil, "", 0, nil, 0},
	} {
		b.Now, b.Notices = start.Add(tt.after), tt.standing
		p := b.step(Notices)
		taint, devices := "", 0
		for _, t := range b.Memory.Published.Taints {
			if t.Key == nodeslices.TaintNotice {
				taint, devices = t.Value+":"+string(t.Effect), devices+1
			}
		}
		if taint != tt.taint || devices != tt.devices {
			t.Errorf("%s: %d devices have %q, want %d with %q", tt.name, devices, taint, tt.devices, tt.taint)
		}
		if diff := cmp.Diff(tt.events, reasons(b.heard())); diff != "" {
			t.Errorf("%s: Events (-want +got):\n%s", tt.name, diff)
		}
		look := time.Duration(0)
		if !p.LookAgain.IsZero() {
			look = p.LookAgain.Sub(b.Now)
		}
		if look != tt.look || p.Status.Notice != p.Memory.Notice {
			t.Errorf("%s: looks again after %s, want %s; status %+v", tt.name, look, tt.look, p.Status.Notice)
		}
		if again := b.step(0); again.Slices != nil || len(b.heard()) > 0 {
			t.Errorf("%s: published or reported again though nothing has changed", tt.name)
		}
	}
}
