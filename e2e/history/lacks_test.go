// SPDX-License-Identifier: Apache-2.0

package history

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLacks(t *testing.T) {
	claims := []Event{allocated(1, "a", left), sharing(1, "b", 50)}
	answers := append(prepare(1, 2, "a", left), prepare(1, 2, "b", shared)...)
	containers := []Event{container(3, "a", ContainerStarted), container(4, "a", ContainerEnded)}
	partition := []Event{created(1.5, "cleave-node", 9, 0, 1), destroyed(6, "cleave-node", 9, 0, 1)}
	exclusive, released := join(mode(1.5, "EXCLUSIVE_PROCESS"), served(3, "b", nil)), unprepare(5, 6, "a")
	for _, tt := range []struct {
		name   string
		events []Event
		limits Limits
		want   []string
	}{
		{name: "all", events: join(claims, answers, containers, partition, exclusive, released)},
		{name: "no API server", events: join(answers, containers, partition, exclusive, released),
			want: []string{"a claim with devices", "a container of a pod that has a claim",
				"a program of a pod that has a claim, with an MPS server"}},
		{name: "claims without devices", events: join(allocated(1, "a"), answers, containers, partition, exclusive, released),
			want: []string{"a claim with devices", "a program of a pod that has a claim, with an MPS server"}},
		{name: "no kubelet", events: join(claims, containers, partition, exclusive),
			want: []string{"an answer to Prepare", "an answer to Unprepare"}},
		{name: "refusals alone", events: join(claims, refused(1, 2, "a"), containers, partition, exclusive, released),
			want: []string{"an answer to Prepare"}},
		{name: "no runtime", events: join(claims, answers, partition, exclusive, released),
			want: []string{"a container of a pod that has a claim"}},
		{name: "containers of other pods", events: join(claims, answers, container(3, "c", ContainerStarted), partition, exclusive, released),
			want: []string{"a container of a pod that has a claim"}},
		{name: "no hardware", events: join(claims, answers, containers, released), want: []string{
			"a partition that cleave-node created", "a partition that cleave-node destroyed", "a compute mode that cleave-node set",
			"a program of a pod that has a claim, with an MPS server"}},
		{name: "the mode of its own alone", events: join(claims, answers, containers, partition, mode(1.5, defaultMode), served(3, "b", nil), released),
			want: []string{"a compute mode that cleave-node set"}},
		{name: "programs of other pods alone", events: join(claims, answers, containers, partition, mode(1.5, "EXCLUSIVE_PROCESS"), served(3, "c", nil), released),
			want: []string{"a program of a pod that has a claim, with an MPS server"}},
		{name: "no programs of pods, which nobody can see", limits: Limits{PodsUnseen: true},
			events: join(claims, answers, containers, partition, mode(1.5, "EXCLUSIVE_PROCESS"), released)},
		{name: "another name", events: join(claims, answers, containers, partition, exclusive, released), limits: Limits{Program: "plugin"},
			want: []string{"a partition that plugin created", "a partition that plugin destroyed", "a compute mode that plugin set"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Lacks(New(tt.events...), tt.limits)); diff != "" {
				t.Errorf("lacks (-want +got):\n%s", diff)
			}
		})
	}
}

// Without counters each device would be a unit of its own, and no rule would see two that overlap.
func TestLacks_Slices(t *testing.T) {
	want := []string{"a counter set", "a device that consumes counters"}
	got := Lacks(New(at(0, Start{Format: Format}), at(0, Device{Name: left})), Limits{})
	if len(got) < len(want) {
		t.Fatalf("lacks %q, want %q first", got, want)
	}
	if diff := cmp.Diff(want, got[:len(want)]); diff != "" {
		t.Errorf("lacks (-want +got):\n%s", diff)
	}
}
