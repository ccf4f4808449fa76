// SPDX-License-Identifier: Apache-2.0

package history

import "testing"

func TestCheck_Published(t *testing.T) {
	withdrawn := func(seconds float64, device string) Event { return at(seconds, Withdrawn{Name: device}) }
	again := func(seconds float64, device string) Event { return at(seconds, Device{Name: device}) }
	later := at(100, Device{Name: "end"})
	fault := func(seconds float64, state FaultState) Event {
		return at(seconds, Fault{ID: 1, Name: "x", State: state})
	}
	runCases(t, []checkCase{
		{name: "while nobody has it", events: join(withdrawn(1, whole), again(50, whole), allocated(51, "a", whole), later)},
		{name: "under a claim", events: join(allocated(1, "a", whole), withdrawn(2, whole), later), want: []string{
			"published: Device gpu-0 was withdrawn at 2s, and not published again before 1m40s. Claim a had it allocated from 1s to 1m40s.",
		}},
		{name: "reserved for its pod meanwhile", events: join(allocated(1, "a", whole), withdrawn(2, whole), allocated(25, "a", whole), deleted(40, "a"), later),
			want: []string{
				"published: Device gpu-0 was withdrawn at 2s, and not published again before 1m40s. Claim a had it allocated from 1s to 40s.",
			}},
		{name: "allocated from an old look", events: join(withdrawn(1, whole), allocated(2, "a", whole), again(50, whole), later), want: []string{
			"published: Device gpu-0 was withdrawn at 1s, and not published again before 50s. Claim a had it allocated from 2s to 1m40s.",
		}},
		{name: "published again soon", events: join(allocated(1, "a", whole), withdrawn(2, whole), again(31, whole), later)},
		{name: "another device", events: join(allocated(1, "a", whole), withdrawn(2, left), later)},
		{name: "until the claim ends", events: join(allocated(1, "a", whole), withdrawn(2, whole), deleted(30, "a"), later)},
		{name: "while a fault lasts", events: join(allocated(1, "a", whole), fault(2, FaultBegan), withdrawn(3, whole), fault(40, FaultRecovered),
			again(60, whole), later)},
		{name: "while a fault lasts that withdraws devices", limits: Limits{Withdrawing: []string{"x"}},
			events: join(allocated(1, "a", whole), fault(2, FaultBegan), withdrawn(3, whole), again(39, whole), fault(40, FaultRecovered), later),
			want: []string{
				"published: Device gpu-0 was withdrawn at 3s, and not published again before 39s. Claim a had it allocated from 1s to 1m40s.",
			}},
	})
}
