// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// oneOfEach is a history with an event of each kind, all fields set.
func oneOfEach() History {
	wall := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var events []Event
	for i, fact := range []Fact{
		Start{Format: Format, Node: "n", Driver: "gpu.example.com"},
		Counters{Set: "gpu-0", Values: map[string]int64{"memory-slices": 8}},
		Withdrawn{Name: "gpu-0"},
		Device{Name: "gpu-0-mps", Set: "gpu-0", Consumes: map[string]int64{"memory-slices": 8}, Shared: true, Capacity: map[string]int64{"shares": 4}},
		Claim{
			UID: "u", Namespace: "ns", Name: "c", State: ClaimAllocated, Pods: []string{"p"}, Deleting: true, Held: true,
			Devices: []Allocated{{Request: "r", Device: "gpu-0-mps", Admin: true, Consumed: map[string]int64{"shares": 1}}},
		},
		Call{ID: "1", Method: Prepare, Claim: "u"},
		Return{ID: "1", Method: Prepare, Claim: "u", Error: "no", Devices: []Prepared{{Device: "gpu-0-mps", CDI: []string{"a=b"}}}},
		Hardware{
			Change: PartitionCreated, GPU: "gpu-0", Partition: &Partition{Profile: 9, Start: 4, Serial: 3},
			PID: 12, Program: "p", Value: "v", By: "cleave-node",
		},
		Container{ID: "i", State: ContainerStarted, Name: "main", Pod: "p"},
		Pod{UID: "p", Namespace: "ns", Name: "pod", State: PodEnding},
		Fault{ID: 1, Name: "kill", State: FaultBegan, Target: "plugin"},
		Gap{Source: SourceAPI, From: time.Second},
		Scheduling{
			Pod: "p", Namespace: "ns", Name: "pod", State: PodPending, Scheduler: "s", Priority: 1, Replaced: true, Reason: "r", By: "q",
			Devices: []string{"gpu-0"},
		},
	} {
		at := time.Duration(i) * time.Millisecond
		events = append(events, Event{At: at, Wall: wall.Add(at), Fact: fact})
	}
	return New(events...)
}

func encode(t *testing.T, h History) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, e := range h.Events {
		data, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(data, '\n'))
	}
	return b.Bytes()
}

func TestDecode(t *testing.T) {
	h := oneOfEach()
	if len(h.Events) != len(decoders) {
		t.Errorf("the test has %d kinds of %d", len(h.Events), len(decoders))
	}
	data := encode(t, h)
	got, err := Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(h, got); diff != "" {
		t.Errorf("history (-written +read):\n%s", diff)
	}
	cut, err := Decode(bytes.NewReader(data[:len(data)-5]))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(h.Events[:len(h.Events)-1], cut.Events); diff != "" {
		t.Errorf("history whose last line is not whole (-want +got):\n%s", diff)
	}
}

// What was recorded before claims had all of their fields can be read.
func TestDecode_Older(t *testing.T) {
	const lines = `{"at":0,"wall":"2026-03-01T12:00:00Z","kind":"start","fact":{"format":1}}
{"at":1000,"wall":"2026-03-01T12:00:00Z","kind":"claim","fact":{"uid":"u","namespace":"ns","name":"c","state":"free","pods":["p"]}}
`
	h, err := Decode(strings.NewReader(lines))
	if err != nil {
		t.Fatal(err)
	}
	want := Claim{UID: "u", Namespace: "ns", Name: "c", State: ClaimFree, Pods: []string{"p"}}
	if diff := cmp.Diff(Fact(want), h.Events[1].Fact); diff != "" {
		t.Errorf("claim (-want +got):\n%s", diff)
	}
}

func TestDecode_Refused(t *testing.T) {
	const start = `{"at":0,"wall":"2026-03-01T12:00:00Z","kind":"start","fact":{"format":1}}` + "\n"
	for _, tc := range []struct{ name, data, want string }{
		{"empty", "", "it has no events"},
		{"no start", `{"at":0,"wall":"2026-03-01T12:00:00Z","kind":"gap","fact":{"source":"api","from":0}}` + "\n",
			`line 1: a history begins with an event "start", and this is "gap"`},
		{"other format", strings.Replace(start, "1}", "2}", 1), "line 1: format 2, and this program reads 1"},
		{"unknown kind", start + `{"at":0,"wall":"2026-03-01T12:00:00Z","kind":"x","fact":{}}` + "\n", `line 2: an event of an unknown kind "x"`},
		{"unknown field", start + `{"at":0,"wall":"2026-03-01T12:00:00Z","kind":"gap","fact":{"x":1}}` + "\n", `line 2: gap: json: unknown field "x"`},
		{"no JSON", start + "x\n", "line 2: invalid character 'x' looking for beginning of value"},
		{"long line", start + strings.Repeat(" ", maxLine+1) + "\n", "line 2: longer than 1048576 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Decode(strings.NewReader(tc.data))
			if err == nil || err.Error() != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	var b bytes.Buffer
	for _, e := range oneOfEach().Events {
		data, err := json.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		b.Write(append(data, '\n'))
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := Decode(bytes.NewReader(data))
		if err != nil {
			return
		}
		again, err := Decode(bytes.NewReader(encode(t, h)))
		if err != nil {
			t.Fatalf("what was read cannot be written and read again: %v", err)
		}
		if len(again.Events) != len(h.Events) {
			t.Errorf("%d events were written, %d read", len(h.Events), len(again.Events))
		}
	})
}

// reporter is a source of some facts.
type reporter []Fact

func (s reporter) Run(ctx context.Context, r *Recorder, ready func()) error {
	for _, f := range s {
		r.Add(f)
	}
	ready()
	<-ctx.Done()
	return nil
}

func TestRecorder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "history")
	r, err := Record(t.Context(), Sources{File: file, Node: "n", Of: []Source{reporter{Call{ID: "1"}}}})
	if err != nil {
		t.Fatal(err)
	}
	r.Add(Return{ID: "1"})
	r.AddAt(-time.Second, Gap{Source: SourceAPI})
	h, err := r.Stop()
	if err != nil {
		t.Fatal(err)
	}
	var got []Fact
	for _, e := range h.Events {
		got = append(got, e.Fact)
	}
	want := []Fact{Gap{Source: SourceAPI}, Start{Format: 1, Node: "n"}, Call{ID: "1"}, Return{ID: "1"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
	r.Add(Gap{}) // too late
	if again, err := Read(file); err != nil || len(again.Events) != len(want) {
		t.Errorf("read again: %d events, %v", len(again.Events), err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(file); err == nil {
		t.Error("a history that is gone was read")
	}
}
