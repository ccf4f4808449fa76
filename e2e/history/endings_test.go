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
