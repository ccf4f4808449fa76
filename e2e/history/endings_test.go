// SPDX-License-Identifier: Apache-2.0

package history

import "testing"

func TestCheck_Endings(t *testing.T) {
	pod := func(seconds float64, state PodState) Event {
		return at(seconds, Pod{UID: "pod-a", Namespace: "ns", Name: "a", State: state})
	}
	fault := func(seconds float64, state FaultState) Event {
		return at(seconds, Fault{ID: 1, Name: "x", State: state})
	}
	later := at(200, Device{Name: "end"})
	started := container(1, "a", ContainerStarted)
	runCases(t, []checkCase{
		{name: "gone", events: join(started, pod(2, PodEnding), container(30, "a", ContainerEnded), pod(89, PodGone), later)},
		{name: "gone late", events: join(started, pod(2, PodEnding), container(30, "a", ContainerEnded), pod(91, PodGone), later), want: []string{
			"ending: Pod ns/a was still there at 1m31s. It was deleted at 2s, its last container ended before 30s, and it must be gone within 1m0s.",
		}},
		{name: "never gone", events: join(started, container(2, "a", ContainerEnded), pod(30, PodEnding), later), want: []string{
			"ending: Pod ns/a was still there at 3m20s. It was deleted at 30s, its last container ended before 30s, and it must be gone within 1m0s.",
		}},
		{name: "its container runs on", events: join(started, pod(2, PodEnding), later)},
		{name: "without containers", events: join(pod(2, PodEnding), pod(63, PodGone), later), want: []string{
			"ending: Pod ns/a was still there at 1m3s. It was deleted at 2s, its last container ended before 2s, and it must be gone within 1m0s.",
		}},
		{name: "the history ends", events: join(pod(150, PodEnding), later)},
		{name: "not seen to go", events: join(pod(2, PodEnding), at(100, Gap{Source: SourceAPI, From: 50 * 1e9}), later, pod(99, PodGone))},
		{name: "while a fault lasts", events: join(pod(2, PodEnding), fault(10, FaultBegan), fault(60, FaultRecovered), pod(110, PodGone), later)},
	})
}

func TestCheck_ClaimEndings(t *testing.T) {
	one := Claim{UID: "a", Namespace: "ns", Name: "a", State: ClaimAllocated, Devices: []Allocated{{Device: whole}}, Deleting: true}
	deleting := func(seconds float64, pods ...string) Event {
		c := one
		c.Pods = pods
		return at(seconds, c)
	}
	held := func(seconds float64, pods ...string) Event {
		c := one
		c.Pods, c.Held = pods, true
		return at(seconds, c)
	}
	free := one
	free.State, free.Devices = ClaimFree, nil
	fault := func(seconds float64, state FaultState) Event {
		return at(seconds, Fault{ID: 1, Name: "API server killed", State: state})
	}
	podGone := func(seconds float64) Event { return at(seconds, Pod{UID: "pod-a", State: PodGone}) }
	later := at(200, Device{Name: "end"})
	stayed := func(until, since string) []string {
		return []string{"ending: Claim ns/a was still there at " + until + ". It was deleted at 2s, nothing kept it from " + since +
			" on, and it must be gone within 1m0s."}
	}
	runCases(t, []checkCase{
		{name: "in time", events: join(deleting(2), deleted(61, "a"), later)},
		{name: "after 61 seconds", events: join(deleting(2), deleted(63, "a"), later), want: stayed("1m3s", "2s")},
		{name: "within a longer bound", limits: Limits{Ending: 61 * 1e9}, events: join(deleting(2), deleted(63, "a"), later)},
		{name: "never gone", events: join(deleting(2), later), want: stayed("3m20s", "2s")},
		{name: "never gone, and without its devices since a while", events: join(deleting(2), at(40, free), later), want: stayed("3m20s", "2s")},
		{name: "not deleted", events: join(allocated(2, "a", whole), podGone(3), later)},
		{name: "held by the finalizer of another", events: join(held(2), later)},
		{name: "held, and gone in time", events: join(held(2), deleting(100), deleted(159, "a"), later)},
		{name: "held, and gone late", events: join(held(2), deleting(100), deleted(161, "a"), later), want: stayed("2m41s", "1m40s")},
		{name: "reserved", events: join(deleting(2, "pod-a"), later)},
		{name: "reserved, and gone in time", events: join(deleting(2, "pod-a"), deleting(100), deleted(159, "a"), later)},
		{name: "reserved for a pod that is gone", events: join(deleting(2, "pod-a"), podGone(100), later), want: stayed("3m20s", "1m40s")},
		{name: "reserved for a pod that was deleted by force", events: join(
			at(1, Scheduling{Pod: "pod-a", State: PodLeft}), deleting(2, "pod-a"), later), want: stayed("3m20s", "2s")},
		{name: "reserved for another pod, too", events: join(deleting(2, "pod-a", "pod-b"), podGone(3), later)},
		{name: "the reservation ends before the pod is seen to go", events: join(
			deleting(2, "pod-a"), deleting(10), podGone(30), deleted(75, "a"), later), want: stayed("1m15s", "10s")},
		{name: "held for pods that are gone", events: join(held(2, "pod-a"), podGone(3), later)},
		{name: "during an outage", events: join(deleting(2), fault(10, FaultBegan), fault(60, FaultRecovered), deleted(111, "a"), later)},
		{name: "after an outage, and late", events: join(deleting(2), fault(10, FaultBegan), fault(60, FaultRecovered), deleted(113, "a"), later),
			want: stayed("1m53s", "2s")},
		{name: "not seen to go", events: join(deleting(2), at(100, Gap{Source: SourceAPI, From: 50 * 1e9}), deleted(99, "a"), later)},
		{name: "the history ends", events: join(at(60, Device{Name: "end"}), deleting(2))},
	})
}
