// SPDX-License-Identifier: Apache-2.0

package history

import "testing"

func TestCheck_Owners(t *testing.T) {
	runCases(t, []checkCase{
		{name: "one after the other", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), unprepare(3, 4, "a"),
			allocated(5, "b", whole), prepare(5, 6, "b", whole))},
		{name: "two at a time", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole),
			allocated(3, "b", whole), prepare(3, 4, "b", whole)),
			want: []string{
				"owner: At 4s claim b was prepared with gpu-0 while claim a had devices of set-0. " +
					"No order of the calls makes that admissible: device gpu-0 has 2 owners and is for one.",
			}},
		{name: "handed over while both calls run", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), allocated(3, "b", whole),
			unprepare(3, 6, "a"), prepare(4, 5, "b", whole))},
		{name: "before the release began", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), allocated(3, "b", whole),
			prepare(3, 4, "b", whole), unprepare(5, 6, "a")),
			want: []string{
				"owner: At 4s claim b was prepared with gpu-0 while claim a had devices of set-0. " +
					"No order of the calls makes that admissible: device gpu-0 has 2 owners and is for one.",
			}},
		{name: "partitions that do not overlap", events: join(
			allocated(1, "a", left), prepare(1, 2, "a", left), created(1.5, "cleave-node", 9, 0, 1),
			allocated(3, "b", right), prepare(3, 4, "b", right), created(3.5, "cleave-node", 9, 4, 2))},
		{name: "partitions that overlap", events: join(
			allocated(1, "a", right), prepare(1, 2, "a", right), allocated(3, "b", small), prepare(3, 4, "b", small)),
			want: []string{
				"owner: At 4s claim b was prepared with gpu-0-mig-19-4 while claim a had devices of set-0. " +
					"No order of the calls makes that admissible: the owners of devices of set-0 have 2 of its 1 slice-4.",
			}},
		{name: "sharers within the amounts", events: join(
			sharing(1, "a", 50), prepare(1, 2, "a", shared), sharing(1, "b", 50), prepare(1, 2, "b", shared))},
		{name: "sharers beyond the amounts", events: join(
			sharing(1, "a", 50), prepare(1, 2, "a", shared), sharing(1, "b", 60), prepare(3, 4, "b", shared)),
			want: []string{
				"owner: At 4s claim b was prepared with gpu-0-mps while claim a had devices of set-0. " +
					"No order of the calls makes that admissible: the sharers of gpu-0-mps have 110 of its 100 cores.",
			}},
		{name: "a sharer and an owner", events: join(
			sharing(1, "a", 50), prepare(1, 2, "a", shared), allocated(1, "b", whole), prepare(3, 4, "b", whole)),
			want: []string{
				"owner: At 4s claim b was prepared with gpu-0 while claim a had devices of set-0. " +
					"No order of the calls makes that admissible: the owners of devices of set-0 have 2 of its 1 slice-0.",
			}},
		{name: "admin access owns nothing", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole),
			at(3, Claim{UID: "b", State: ClaimAllocated, Devices: []Allocated{{Device: whole, Admin: true}}}), prepare(3, 4, "b", whole))},
		{name: "a refused claim owns nothing", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), allocated(1, "b", whole), refused(3, 4, "b"))},
	})
}

func TestCheck_OwnersUnknownOutcome(t *testing.T) {
	runCases(t, []checkCase{
		{name: "prepared by a call without an answer", events: join(
			allocated(1, "a", whole), lost(prepare(1, 0, "a")), allocated(2, "b", whole), prepare(2, 3, "b", whole))},
		{name: "unprepared by a call without an answer", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), lost(unprepare(3, 0, "a")),
			allocated(4, "b", whole), prepare(4, 5, "b", whole))},
		{name: "prepared again after it", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), lost(unprepare(3, 0, "a")), prepare(6, 7, "a", whole),
			allocated(4, "b", whole), prepare(4, 5, "b", whole)),
			want: []string{
				"owner: At 7s claim a was prepared with gpu-0 while claim b had devices of set-0. " +
					"No order of the calls makes that admissible: device gpu-0 has 2 owners and is for one.",
			}},
		{name: "by force", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), deleted(3, "a"), allocated(3, "b", whole), prepare(3, 4, "b", whole))},
		{name: "by force, before its container has ended", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), container(2.5, "a", ContainerStarted), deleted(3, "a"),
			allocated(3, "b", whole), prepare(3, 4, "b", whole), container(5, "a", ContainerEnded)),
			want: []string{
				"owner: At 5s container main of pod pod-a ended while claim b had devices of set-0. " +
					"No order of the calls makes that admissible: claim a does not have its devices then.",
			}},
		{name: "by force, just after its container has ended, and its event comes later", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), container(2.5, "a", ContainerStarted), deleted(3, "a"),
			allocated(3, "b", whole), prepare(3, 4, "b", whole), container(4.4, "a", ContainerEnded), unprepare(5, 6, "a"))},
		{name: "by force, when its container ended is not known", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), container(2.5, "a", ContainerStarted), deleted(3, "a"),
			allocated(3, "b", whole), prepare(3, 4, "b", whole), container(5, "a", ContainerEnded), at(5, Gap{SourceRuntime, 2_700_000_000}))},
		{name: "unprepared, before its container has ended", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), container(2.5, "a", ContainerStarted), unprepare(3, 4, "a"),
			allocated(4, "b", whole), prepare(5, 6, "b", whole), container(7, "a", ContainerEnded)),
			want: []string{
				"owner: At 7s container main of pod pod-a ended while claim b had devices of set-0. " +
					"No order of the calls makes that admissible: claim a does not have its devices then.",
			}},
		{name: "unprepared, before its container has ended, and nobody has it", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), container(2.5, "a", ContainerStarted), unprepare(3, 4, "a"),
			container(7, "a", ContainerEnded), allocated(7, "b", whole), prepare(8, 9, "b", whole))},
		{name: "unprepared, and its container ended just then", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), container(2.5, "a", ContainerStarted), unprepare(3, 4, "a"),
			container(4.4, "a", ContainerEnded), allocated(4, "b", whole), prepare(4.1, 4.2, "b", whole))},
		{name: "unprepared, and prepared again while its container runs", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), container(2.5, "a", ContainerStarted), unprepare(3, 4, "a"),
			prepare(5, 6, "a", whole), container(7, "a", ContainerEnded), unprepare(8, 9, "a"), allocated(9, "b", whole), prepare(10, 11, "b", whole))},
		{name: "the API server says later that it is gone", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), allocated(3, "b", whole), prepare(3, 4, "b", whole), deleted(4.5, "a"))},
		{name: "the API server says much later, after a gap", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), allocated(3, "b", whole), prepare(3, 4, "b", whole),
			at(20, Gap{SourceAPI, 2_000_000_000}), deleted(20, "a"))},
		{name: "the API server says much later, without a gap", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), allocated(3, "b", whole), prepare(3, 4, "b", whole), deleted(20, "a")),
			want: []string{
				"owner: At 4s claim b was prepared with gpu-0 while claim a had devices of set-0. " +
					"No order of the calls makes that admissible: device gpu-0 has 2 owners and is for one.",
			}},
		{name: "the node boots", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), hardware(3, Booted, "sim", nil), allocated(3, "b", whole), prepare(4, 5, "b", whole))},
	})
}
