// SPDX-License-Identifier: Apache-2.0

package history

import "testing"

// The schedulers of the tests.
const first, second = "default-scheduler", "cleave-scheduler"

func scheduling(seconds float64, uid string, f Scheduling) Event {
	f.Pod, f.Namespace, f.Name = "pod-"+uid, "ns", uid
	return at(seconds, f)
}

// pending is the pod of a claim, which gets its node at once if its claim is allocated by then.
func pending(seconds float64, uid, scheduler string, priority int32) Event {
	return scheduling(seconds, uid, Scheduling{State: PodPending, Scheduler: scheduler, Priority: priority, Replaced: true})
}

func becomes(seconds float64, uid string, state SchedulingState) Event {
	return scheduling(seconds, uid, Scheduling{State: state})
}

func evicted(seconds float64, uid, reason string) Event {
	return scheduling(seconds, uid, Scheduling{State: PodEvicted, Reason: reason})
}

func preempted(seconds float64, uid, by string) Event {
	return scheduling(seconds, uid, Scheduling{State: PodPreempted, By: "pod-" + by})
}

func promised(seconds float64, uid string, devices ...string) Event {
	return scheduling(seconds, uid, Scheduling{State: PodPromised, Devices: devices})
}

// runs is a pod with a claim that gets devices at a second, and starts two seconds later.
func runs(seconds float64, uid string, devices ...string) []Event {
	return append([]Event{
		allocated(seconds, uid, devices...), becomes(seconds+0.2, uid, PodBound), container(seconds+2, uid, ContainerStarted),
	}, prepare(seconds+1, seconds+1.5, uid, devices...)...)
}

// goes is the end of a pod that runs.
func goes(seconds float64, uid string) []Event {
	return append([]Event{
		becomes(seconds, uid, PodDeleted), container(seconds+1, uid, ContainerEnded), becomes(seconds+2, uid, PodLeft), deleted(seconds+2, uid),
	}, unprepare(seconds+1.2, seconds+1.5, uid)...)
}

func faults(name string, from, to float64) []Event {
	return []Event{at(from, Fault{ID: 1, Name: name, State: FaultBegan}), at(to, Fault{ID: 1, Name: name, State: FaultRecovered})}
}

func TestCheck_Collisions(t *testing.T) {
	later := at(200, Device{Name: "end"})
	twice := join(later, pending(0.5, "a", first, 0), pending(0.5, "b", second, 0), runs(1, "a", whole),
		allocated(1, "b", whole), becomes(1.2, "b", PodBound), refused(2, 3, "b"))
	kept := []string{"collision: Claim b could not be prepared from 2.5s to 30s, as claim a had its devices. One of their pods must go within 20s."}
	runCases(t, []checkCase{
		{name: "the one that waits is evicted", events: join(twice, evicted(16.5, "b", ReasonAllocatedTwice), becomes(17, "b", PodLeft), deleted(17, "b"))},
		{name: "the other goes by itself", events: join(twice, goes(10, "a"), prepare(12, 13, "b", whole), container(14, "b", ContainerStarted))},
		{name: "the one that waits is deleted late", events: join(twice, becomes(30, "b", PodDeleted), deleted(31, "b")), want: kept},
		{name: "the other goes late", events: join(twice, goes(30, "a"), prepare(32, 33, "b", whole)), want: kept},
		{name: "during a fault", events: join(twice, faults("x", 5, 20), becomes(30, "b", PodDeleted), deleted(31, "b"))},
		{name: "during a fault that is aside", limits: Limits{Aside: []string{"x"}},
			events: join(twice, faults("x", 5, 20), becomes(30, "b", PodDeleted), deleted(31, "b")), want: kept},
		{name: "of a partition and its GPU", events: join(later, pending(0.5, "a", first, 0), pending(0.5, "b", second, 0), runs(1, "a", whole),
			allocated(1, "b", left), becomes(1.2, "b", PodBound), refused(2, 3, "b"), becomes(30, "b", PodDeleted), deleted(31, "b")), want: kept},
		{name: "nobody makes another", events: join(later, pending(0.5, "a", first, 0), runs(1, "a", whole), allocated(1, "b", whole),
			scheduling(0.5, "b", Scheduling{State: PodPending, Scheduler: second}), becomes(1.2, "b", PodBound), refused(2, 3, "b"),
			becomes(30, "b", PodDeleted), deleted(31, "b"))},
		{name: "none", events: join(later, pending(0.5, "a", first, 0), pending(0.5, "b", second, 0), runs(1, "a", left), allocated(1, "b", right),
			becomes(1.2, "b", PodBound), refused(2, 3, "b"), becomes(30, "b", PodDeleted), deleted(31, "b"))},
		{name: "one that runs is evicted", events: join(later, pending(0.5, "a", first, 0), runs(1, "a", whole), evicted(16, "a", ReasonAllocatedTwice)),
			want: []string{"collision: At 16s pod ns/a was evicted, as its devices were allocated twice. It had started at 3s."}},
		{name: "one that has just started is evicted", events: join(
			later, pending(0.5, "a", first, 0), runs(13, "a", whole), evicted(16, "a", ReasonAllocatedTwice))},
		{name: "one that runs is evicted for another reason", events: join(
			later, pending(0.5, "a", first, 0), runs(1, "a", whole), evicted(16, "a", "EvictionByEvictionAPI"))},
		{name: "both have it", events: join(twice, prepare(10, 11, "b", whole)), want: []string{
			"owner: At 11s claim b was prepared with gpu-0 while claim a had devices of set-0. " +
				"No order of the calls makes that admissible: device gpu-0 has 2 owners and is for one.",
		}},
	})
}

func TestCheck_Preemptions(t *testing.T) {
	later := at(200, Device{Name: "end"})
	low := join(later, pending(0.5, "v", second, -10), runs(1, "v", whole), pending(20, "p", second, 10),
		evicted(21, "v", ReasonPreempted), goes(21, "v"))
	victim := join(low, preempted(21, "v", "p"), promised(21.1, "p", whole))
	late := func(until string) []string {
		return []string{"preemption: Pod ns/p did not run before " + until +
			". The pods that were evicted for it had gone at 23s, and it must run or go within 20s."}
	}
	given := []string{"preemption: At 24s claim o of pod ns/o was allocated [gpu-0-mig-9-0]. At 21.1s that was kept for pod ns/p, whose priority is not lower."}
	other := func(scheduler string, priority int32) []Event {
		return join(pending(10, "o", scheduler, priority), runs(24, "o", left), goes(30, "o"))[len(published()):]
	}
	runCases(t, []checkCase{
		{name: "runs", events: join(victim, runs(24, "p", whole))},
		{name: "runs late", events: join(victim, runs(50, "p", whole)), want: late("52s")},
		{name: "runs late after a fault", events: join(victim, faults("x", 24, 40), runs(50, "p", whole))},
		{name: "never runs", events: victim, want: late("3m20s")},
		{name: "is deleted", events: join(victim, becomes(30, "p", PodDeleted))},
		{name: "is evicted itself", events: join(victim, evicted(30, "p", ReasonPreempted), preempted(30, "p", "q"), pending(29, "q", second, 20),
			becomes(32, "q", PodDeleted))},
		{name: "of the same priority", events: join(later, pending(0.5, "v", second, 10), runs(1, "v", whole), pending(20, "p", second, 10),
			evicted(21, "v", ReasonPreempted), goes(21, "v"), preempted(21, "v", "p"), runs(24, "p", whole)),
			want: []string{"preemption: At 21s pod ns/v of priority 10 was evicted for pod ns/p. That has priority 10."}},
		{name: "for nobody", events: join(later, pending(0.5, "v", second, -10), runs(1, "v", whole), evicted(21, "v", ReasonPreempted), goes(21, "v")),
			want: []string{"preemption: At 21s pod ns/v was evicted to make room. No pod of a higher priority than -10 waited for a node."}},
		{name: "for one of which no Event tells", events: join(low, runs(24, "p", whole))},
		{name: "for one that had its node", events: join(later, pending(0.5, "v", second, -10), runs(1, "v", left), pending(2, "p", second, 10),
			runs(3, "p", right), evicted(21, "v", ReasonPreempted), goes(21, "v")),
			want: []string{"preemption: At 21s pod ns/v was evicted to make room. No pod of a higher priority than -10 waited for a node."}},
		{name: "given to one of a lower priority", events: join(victim, other(second, 0), runs(32, "p", whole)), want: given},
		{name: "given, but another had it, too", events: join(victim, pending(9, "q", first, 0), allocated(10, "q", whole), becomes(10.2, "q", PodBound),
			refused(11, 12, "q"), becomes(25, "q", PodDeleted), becomes(26, "q", PodLeft), deleted(26, "q"), other(second, 0), runs(32, "p", whole))},
		{name: "given to an equal", events: join(victim, other(second, 10), runs(32, "p", whole)), want: given},
		{name: "given to one of a higher priority", events: join(victim, other(second, 20), runs(32, "p", whole))},
		{name: "given to one of a higher priority, which keeps it", events: join(victim, pending(10, "o", second, 20), runs(24, "o", left))},
		{name: "taken by another scheduler", events: join(victim, other(first, 0), runs(32, "p", whole))},
		{name: "given after a restart", limits: Limits{Restarts: []string{"x"}}, events: join(victim, faults("x", 22, 23), other(second, 0), runs(32, "p", whole))},
		{name: "given once the pod is gone", events: join(victim, becomes(23.5, "p", PodDeleted), other(second, 0))},
		{name: "given once the pod is no longer nominated", events: join(victim, becomes(23.5, "p", PodDropped), other(second, 0), runs(32, "p", whole))},
		{name: "given as the pod gets others", events: join(victim, other(second, 0), allocated(25, "p", small), becomes(25.2, "p", PodBound),
			prepare(26, 26.5, "p", small), container(27, "p", ContainerStarted))},
	})
}
