// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The devices of the tests: a GPU of eight memory slices.
const (
	whole  = "gpu-0"
	left   = "gpu-0-mig-9-0"
	right  = "gpu-0-mig-9-4"
	small  = "gpu-0-mig-19-4"
	shared = "gpu-0-mps"
)

func slicesOf(from, to int) map[string]int64 {
	all := map[string]int64{}
	for i := from; i < to; i++ {
		all[fmt.Sprintf("slice-%d", i)] = 1
	}
	return all
}

// published are the devices, from the start.
func published() []Event {
	return []Event{
		at(0, Start{Format: Format}),
		at(0, Counters{Set: "set-0", Values: slicesOf(0, 8)}),
		at(0, Device{Name: whole, Set: "set-0", Consumes: slicesOf(0, 8)}),
		at(0, Device{Name: left, Set: "set-0", Consumes: slicesOf(0, 4)}),
		at(0, Device{Name: right, Set: "set-0", Consumes: slicesOf(4, 8)}),
		at(0, Device{Name: small, Set: "set-0", Consumes: slicesOf(4, 5)}),
		at(0, Device{Name: shared, Set: "set-0", Consumes: slicesOf(0, 8), Shared: true, Capacity: map[string]int64{"cores": 100}}),
	}
}

func at(seconds float64, fact Fact) Event {
	return Event{At: time.Duration(seconds * float64(time.Second)), Fact: fact}
}

func allocated(seconds float64, uid string, devices ...string) Event {
	c := Claim{UID: uid, State: ClaimAllocated, Pods: []string{"pod-" + uid}}
	for _, d := range devices {
		c.Devices = append(c.Devices, Allocated{Device: d})
	}
	return at(seconds, c)
}

func sharing(seconds float64, uid string, cores int64) Event {
	return at(seconds, Claim{UID: uid, State: ClaimAllocated, Pods: []string{"pod-" + uid}, Devices: []Allocated{
		{Device: shared, Consumed: map[string]int64{"cores": cores}},
	}})
}

func deleted(seconds float64, uid string) Event {
	return at(seconds, Claim{UID: uid, State: ClaimDeleted})
}

// prepare is a call from one second to another, and its answer.
func prepare(from, to float64, uid string, devices ...string) []Event {
	r := Return{ID: fmt.Sprint("p", from), Method: Prepare, Claim: uid}
	for _, d := range devices {
		r.Devices = append(r.Devices, Prepared{Device: d, CDI: []string{"cdi/" + uid + "=" + d}})
	}
	return []Event{at(from, Call{ID: r.ID, Method: Prepare, Claim: uid}), at(to, r)}
}

func unprepare(from, to float64, uid string) []Event {
	id := fmt.Sprint("u", from)
	return []Event{at(from, Call{ID: id, Method: Unprepare, Claim: uid}), at(to, Return{ID: id, Method: Unprepare, Claim: uid})}
}

// refused is a Prepare that fails.
func refused(from, to float64, uid string) []Event {
	events := prepare(from, to, uid)
	r := events[1].Fact.(Return)
	r.Error, r.Devices = "no", nil
	events[1].Fact = r
	return events
}

// lost is the call of what has no answer.
func lost(events []Event) Event { return events[0] }

func hardware(seconds float64, change Change, by string, p *Partition) Event {
	return at(seconds, Hardware{Change: change, GPU: whole, Partition: p, By: by})
}

func created(seconds float64, by string, profile, start int, serial uint64) Event {
	return hardware(seconds, PartitionCreated, by, &Partition{Profile: profile, Start: start, Serial: serial})
}

func destroyed(seconds float64, by string, profile, start int, serial uint64) Event {
	return hardware(seconds, PartitionDestroyed, by, &Partition{Profile: profile, Start: start, Serial: serial})
}

func mode(seconds float64, value string) Event {
	return at(seconds, Hardware{Change: ComputeMode, GPU: whole, Value: value, By: "cleave-node"})
}

// served is a program of a claim's pod that an MPS server begins to serve: of the GPU, or of a partition of it.
func served(seconds float64, uid string, p *Partition) Event {
	return at(seconds, Hardware{Change: ServedStarted, GPU: whole, Partition: p, PID: 12, Program: "cuda", Pod: "pod-" + uid, By: "nvidia-cuda-mps-server"})
}

func container(seconds float64, uid string, state ContainerState) Event {
	return at(seconds, Container{ID: "container-" + uid, Name: "main", Pod: "pod-" + uid, State: state})
}

func join(parts ...any) []Event {
	events := published()
	for _, p := range parts {
		switch p := p.(type) {
		case Event:
			events = append(events, p)
		case []Event:
			events = append(events, p...)
		}
	}
	return events
}

// checkCase is a history, and what is wrong with it.
type checkCase struct {
	name   string
	events []Event
	limits Limits
	want   []string
}

func runCases(t *testing.T, cases []checkCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, v := range Check(New(tc.events...), tc.limits) {
				got = append(got, v.String())
				if len(v.Events) == 0 {
					t.Errorf("no events show that %s", v)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}
