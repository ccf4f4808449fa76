// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// newNode creates a node with a session.
func newNode(t *testing.T, model string, opts ...sim.Option) *sim.Node {
	t.Helper()
	n, err := sim.New(model, opts...)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Init(); err != nil {
		t.Fatal(err)
	}
	return n
}

func uuidOf(t *testing.T, n *sim.Node, index int) string {
	t.Helper()
	uuid, err := n.Device(index).UUID()
	if err != nil {
		t.Fatal(err)
	}
	return uuid
}

func TestVisibleDevices(t *testing.T) {
	n := newNode(t, "hgx-h100")
	if _, err := n.Device(7).MIG().SetMIGMode(true); err != nil {
		t.Fatal(err)
	}
	gi, err := n.Device(7).MIG().CreateGPUInstanceWithPlacement(9, gpu.Placement{Start: 4, Size: 4})
	if err != nil {
		t.Fatal(err)
	}
	ci, err := gi.CreateComputeInstance(2)
	if err != nil {
		t.Fatal(err)
	}
	mig, err := sim.MIGDeviceOf(ci).UUID()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Hardware().Lose(6); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		visible string
		want    []int
	}{
		{"all", []int{0, 1, 2, 3, 4, 5}},
		{"3", []int{3}},
		{"5, 0", []int{5, 0}},
		{uuidOf(t, n, 4) + "," + uuidOf(t, n, 2)[:12], []int{4, 2}},
		{"1,9,2", []int{1}},
		{"1,6,2", []int{1}},
		{"1,7,2", []int{1}},
		{"GPU-nope", nil},
		{mig, []int{7}},
		{"", nil},
		{"-1", nil},
	}
	for _, tt := range tests {
		visible := &tt.visible
		if tt.visible == "all" {
			visible = nil
		}
		devices, err := visibleDevices(n, visible)
		var got []int
		for _, d := range devices {
			got = append(got, d.index)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || (err == nil) != (tt.want != nil) {
			t.Errorf("%q: %v (-want +got):\n%s", tt.visible, err, diff)
		}
	}
	devices, err := visibleDevices(n, &mig)
	if err != nil || devices[0].gi != gi.ID() || devices[0].maxClients != 48*3/7 || devices[0].memory != 40448<<20 {
		t.Errorf("partition: %+v, %v", devices[0], err)
	}
}

func TestMaxClients(t *testing.T) {
	for _, tt := range []struct {
		capability, driver, want int
	}{{6, 600, 16}, {7, 580, 48}, {9, 589, 48}, {9, 590, 60}} {
		if got := maxClients(&sim.Board{ComputeCapability: [2]int{tt.capability, 0}}, tt.driver); got != tt.want {
			t.Errorf("capability %d, driver %d: %d, want %d", tt.capability, tt.driver, got, tt.want)
		}
	}
}

func TestSelectDevice(t *testing.T) {
	a, b := &device{uuid: "GPU-aa"}, &device{uuid: "GPU-bb"}
	devices := []*device{a, b}
	text := func(s string) *string { return &s }
	tests := []struct {
		name    string
		request Request
		want    *device
		refusal string
	}{
		{"first", Request{}, a, ""},
		{"second", Request{Device: 1}, b, ""},
		{"third", Request{Device: 2}, nil, ErrorInvalidDevice},
		{"negative", Request{Device: -1}, nil, ErrorInvalidDevice},
		{"by UUID", Request{Visible: text("GPU-bb")}, b, ""},
		{"by ordinal", Request{Visible: text("1,0"), Device: 1}, a, ""},
		{"past the first that is wrong", Request{Visible: text("1,5,0"), Device: 1}, nil, ErrorInvalidDevice},
		{"none", Request{Visible: text("")}, nil, ErrorNoDevice},
	}
	for _, tt := range tests {
		got, refusal := selectDevice(devices, &tt.request)
		if got != tt.want || (refusal == nil) != (tt.refusal == "") || refusal != nil && refusal.Name != tt.refusal {
			t.Errorf("%s: %v, %v", tt.name, got, refusal)
		}
	}
	for limits, want := range map[string]uint64{"": 0, "0=1G": 1 << 30, "1=1G": 0, "GPU-aa=1M,0=2M": 2 << 20, "0=2M,GPU-a=1M": 1 << 20, "GPU-b=1M": 0} {
		got, unlimited, err := ownLimit(devices, a, &Request{Limits: limits})
		if got != want || unlimited || err != nil {
			t.Errorf("own limit %q = %d, unlimited %t, %v, want %d", limits, got, unlimited, err, want)
		}
	}
	for _, r := range []Request{{Limits: "0=1G,2=1G"}, {Limits: "GPU-c=1G"}, {Limits: "0=1G,1=1G", Visible: text("0")}} {
		if _, unlimited, err := ownLimit(devices, a, &r); !unlimited || err != nil {
			t.Errorf("own limit %q is one, %v, want none: it names a device that the program does not see", r.Limits, err)
		}
	}
}

// admitAll asks a server for room for programs, one after the other, and returns what each got.
func TestAdmit(t *testing.T) {
	n := newNode(t, "hgx-h100")
	visible := "2"
	devices, err := visibleDevices(n, &visible)
	if err != nil {
		t.Fatal(err)
	}
	hold, err := n.Clients().Hold(ServerName)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name     string
		settings settings
		limit    uint64
		request  Request
		threads  float64
		memory   uint64
		refusal  string
	}{
		{"nothing set", settings{Threads: 100}, 0, Request{}, 100, 0, ""},
		{"the server's", settings{Threads: 25}, 4 << 30, Request{}, 25, 4 << 30, ""},
		{"own are lower", settings{Threads: 25}, 4 << 30, Request{Threads: "10", Limits: "0=1G"}, 10, 1 << 30, ""},
		{"own are higher", settings{Threads: 25}, 4 << 30, Request{Threads: "50", Limits: "0=8G"}, 25, 4 << 30, ""},
		{"own alone", settings{Threads: 100}, 0, Request{Threads: "50.5", Limits: uuidOf(t, n, 2) + "=1024M"}, 50.5, 1 << 30, ""},
		{"all that is allowed", settings{Threads: 100}, 4 << 30, Request{Memory: 4 << 30}, 100, 4 << 30, ""},
		{"more than the server allows", settings{Threads: 100}, 4 << 30, Request{Memory: 4<<30 + 1}, 0, 0, ErrorOutOfMemory},
		{"more than it allows itself", settings{Threads: 100}, 4 << 30, Request{Memory: 2 << 30, Limits: "0=1G"}, 0, 0, ErrorOutOfMemory},
		{"more than there is", settings{Threads: 100}, 0, Request{Memory: 200 << 30}, 0, 0, ErrorOutOfMemory},
		{"bad threads", settings{Threads: 100}, 0, Request{Threads: "200"}, 0, 0, ErrorInvalidValue},
		{"bad limits", settings{Threads: 100}, 0, Request{Limits: "0=x"}, 0, 0, ErrorInvalidValue},
		{"another device", settings{Threads: 100}, 0, Request{Device: 1}, 0, 0, ErrorInvalidDevice},
	}
	for _, tt := range tests {
		s := &server{devices: devices, hold: hold, clients: n.Clients(), settings: tt.settings, state: stateActive, log: &logFile{&strings.Builder{}, "Server"}}
		devices[0].limit, devices[0].used = tt.limit, 0
		granted, _, refusal := s.admit(&ask{Program: &tt.request})
		if refusal != nil {
			if refusal.Name != tt.refusal {
				t.Errorf("%s: %v", tt.name, refusal)
			}
			continue
		}
		if granted.Threads != tt.threads || granted.MemoryLimit != tt.memory || tt.refusal != "" {
			t.Errorf("%s: %+v", tt.name, granted)
		}
	}
}

// Programs on one device take of the same memory and the same places.
func TestAdmit_Counts(t *testing.T) {
	n := newNode(t, "hgx-h100")
	visible := "0,1"
	devices, err := visibleDevices(n, &visible)
	if err != nil {
		t.Fatal(err)
	}
	hold, err := n.Clients().Hold(ServerName)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{devices: devices, hold: hold, clients: n.Clients(), settings: settings{Threads: 100}, state: stateActive, log: &logFile{&strings.Builder{}, "Server"}}
	admit := func(r Request) string {
		_, p, refusal := s.admit(&ask{Program: &r})
		if refusal != nil {
			return refusal.Name
		}
		s.programs = append(s.programs, p)
		return ""
	}
	for i := range 48 {
		if refusal := admit(Request{Memory: 1 << 30}); refusal != "" {
			t.Fatalf("client %d: %s", i, refusal)
		}
	}
	if refusal := admit(Request{}); refusal != ErrorMaxClients {
		t.Errorf("client 49: %q", refusal)
	}
	if refusal := admit(Request{Device: 1, Memory: 60 << 30}); refusal != "" {
		t.Errorf("on the other device: %q", refusal)
	}
	if refusal := admit(Request{Device: 1, Memory: 60 << 30}); refusal != ErrorOutOfMemory {
		t.Errorf("too much on the other device: %q", refusal)
	}
	m, err := n.Device(0).Memory().MemoryV2()
	if want := uint64(48<<30 + contextMemory); m.Used != want || err != nil {
		t.Errorf("memory in use = %d, %v, want %d", m.Used, err, want)
	}
	s.state = stateFault
	if refusal := admit(Request{Device: 1}); refusal != ErrorServerNotReady {
		t.Errorf("after a fault: %q", refusal)
	}
}
