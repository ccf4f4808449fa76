// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// allEvents are those of the newest drivers, and some unregistered ones.
const allEvents = 0xFFFF

func eventBed(t *testing.T, gpus int) (*fakeLibrary, *Session) {
	t.Helper()
	lib := &fakeLibrary{errs: map[string]error{}}
	for i := range gpus {
		d := h100(i)
		d.events = allEvents
		lib.devices = append(lib.devices, d)
	}
	return lib, openFake(t, lib)
}

func TestEvents_SupportedTypes(t *testing.T) {
	const migChanged, xid, doubleBit, unavailable, recovery = 0x100, 0x8, 0x2, 0x4000, 0x8000
	lib, s := eventBed(t, 3)
	lib.devices[1].events = migChanged | xid | 0x1 // an older driver
	lib.devices[2].events = 0x1
	if _, err := s.Events(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []uint64{migChanged | xid | doubleBit | unavailable | recovery, migChanged | xid, 0}
	for i, d := range lib.devices {
		if got := lib.set.registered[d]; got != want[i] {
			t.Errorf("GPU %d: got events %#x, want %#x", i, got, want[i])
		}
	}
}

// The driver counts GPU instances from 0, and may name a GPU that is not in the inventory.
func TestEvents_Next(t *testing.T) {
	lib, s := eventBed(t, 2)
	e, err := s.Events(t.Context())
	must(t, err)
	const none = 0xFFFFFFFF
	lib.set.next = []EventData{
		{Handle: lib.devices[1], Type: 0x8, Data: 94, GPUInstance: 0, ComputeInstance: 0},
		{Handle: h100(7), Type: 0x8000, GPUInstance: none, ComputeInstance: none},
	}
	second, gi := s.Node().GPUs[1].PCI, 0
	for _, want := range []gpu.Event{{Kind: gpu.XIDReported, PCI: &second, XID: 94, GI: &gi}, {Kind: gpu.RecoveryChanged}} {
		got, happened, err := e.Next(time.Second)
		if diff := cmp.Diff(want, got); diff != "" || !happened || err != nil {
			t.Errorf("%v, %t, %v: event (-want +got):\n%s", want, happened, err, diff)
		}
	}
}

func TestEvents_UnwatchableGPU(t *testing.T) {
	for name, failing := range map[string]string{"the mask": "SupportedEventTypes", "the registration": "RegisterEvents"} {
		for _, sentinel := range []error{gpu.ErrLost, gpu.ErrNotSupported} {
			lib, s := eventBed(t, 2)
			lib.devices[0].errs[failing] = sentinel
			if _, err := s.Events(t.Context()); err != nil {
				t.Errorf("%s, %v: %v", name, sentinel, err)
				continue
			}
			if r := lib.set.registered; len(r) != 1 || r[lib.devices[1]] == 0 {
				t.Errorf("%s, %v: registered are %d GPUs, want the second and no other", name, sentinel, len(r))
			}
		}
	}
}

func TestEvents_SetFreed(t *testing.T) {
	broken := errors.New("unknown error")
	for name, tt := range map[string]struct {
		prepare func(*fakeLibrary)
		want    error
	}{
		"undefined set": {func(l *fakeLibrary) { l.devices[1].errs["RegisterEvents"] = broken }, broken},
		"no events":     {func(l *fakeLibrary) { l.devices[0].events, l.devices[1].events = 0x1, 0 }, gpu.ErrNotSupported},
	} {
		lib, s := eventBed(t, 2)
		tt.prepare(lib)
		if _, err := s.Events(t.Context()); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", name, err, tt.want)
		}
		if lib.calls[len(lib.calls)-1] != "Free" {
			t.Errorf("%s: the last call is %s, want that the set is freed", name, lib.calls[len(lib.calls)-1])
		}
	}
	lib, s := eventBed(t, 1)
	lib.errs["EventSet"] = broken
	if _, err := s.Events(t.Context()); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}

// NVML is restarted between the registrations of two GPUs: the set of before must not be used, and is freed once.
func TestEvents_RestartedMeanwhile(t *testing.T) {
	lib, s := eventBed(t, 2)
	e, err := s.Events(t.Context())
	must(t, err)
	must(t, s.calls.restart(t.Context(), "", releaseWait, func(opened nodes) []*watchdog { return s.calls.reopen(t.Context(), opened) }))
	clear(lib.set.registered)
	if err := e.register(t.Context(), s.Node().GPUs[1].PCI); !errors.Is(err, errRestarted) || len(lib.set.registered) > 0 {
		t.Errorf("got %v and %d registered GPUs, want %v", err, len(lib.set.registered), errRestarted)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if freed := len(slices.DeleteFunc(lib.calls, func(c string) bool { return c != "Free" })); freed != 1 {
		t.Errorf("the set was freed %d times, want once", freed)
	}
}

// A GPU is opened again while others are being registered: only another subscription has its events.
func TestEvents_RetakenMeanwhile(t *testing.T) {
	lib, s := eventBed(t, 2)
	lib.devices[1].called = func(name string) {
		if name == "RegisterEvents" {
			s.calls.outdateEvents()
		}
	}
	e, err := s.Events(t.Context())
	must(t, err)
	if _, _, err := e.Next(0); !errors.Is(err, errRestarted) {
		t.Errorf("got %v, want %v", err, errRestarted)
	}
}

// A subscription ends while NVML is being restarted, which frees the set.
func TestEvents_ClosedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib, s := eventBed(t, 1)
		e, err := s.Events(t.Context())
		must(t, err)
		release, err := s.calls.dogs.acquireAll(t.Context(), releaseWait, changeTimeout)
		must(t, err)
		closed := make(chan error, 1)
		go func() { closed <- e.Close() }()
		synctest.Wait()
		s.calls.epoch.Add(1)
		release()
		if err := <-closed; err != nil || slices.Contains(lib.calls, "Free") {
			t.Errorf("got %v and calls %v, want that the set is left to the restart", err, lib.calls)
		}
	})
}

func TestRecovery_Unsupported(t *testing.T) {
	broken := errors.New("unknown error")
	lib, s := eventBed(t, 1)
	d, pci := lib.devices[0], s.Node().GPUs[0].PCI
	d.recovery = 4
	for name, tt := range map[string]struct {
		call string
		err  error
		want gpu.RecoveryAction
		fail error
	}{
		"reported":         {"", nil, gpu.RecoveryDrainAndReset, nil},
		"no such function": {"FieldValues", gpu.ErrNotSupported, gpu.RecoveryUnknown, nil},
		"no such field":    {"field 230", gpu.ErrNotSupported, gpu.RecoveryUnknown, nil},
		"unknown number":   {"field 230", gpu.ErrInvalidArgument, gpu.RecoveryUnknown, nil},
		"lost":             {"FieldValues", gpu.ErrLost, gpu.RecoveryUnknown, gpu.ErrLost},
		"lost, by field":   {"field 230", gpu.ErrLost, gpu.RecoveryUnknown, gpu.ErrLost},
		"something else":   {"field 230", broken, gpu.RecoveryUnknown, broken},
	} {
		d.errs = map[string]error{tt.call: tt.err}
		got, err := s.Recovery(t.Context(), pci)
		if got.Action != tt.want || !errors.Is(err, tt.fail) || (err != nil) != (tt.fail != nil) {
			t.Errorf("%s: got %d, %v, want %d, %v", name, got.Action, err, tt.want, tt.fail)
		}
	}
	for name, tt := range map[string]struct {
		remap uint64
		err   error
		want  *bool
	}{
		"failed":     {1, nil, ptr(true)},
		"not failed": {0, nil, ptr(false)},
		"MIG mode":   {1, gpu.ErrNotSupported, nil},
		"lost":       {1, gpu.ErrLost, nil},
		"nonsense":   {0xffffffff, nil, nil},
	} {
		d.remap, d.errs = tt.remap, map[string]error{"field 145": tt.err, "field 230": gpu.ErrNotSupported} // as of older drivers
		got, err := s.Recovery(t.Context(), pci)
		must(t, err)
		equal(t, name, gpu.Recovery{Action: gpu.RecoveryUnknown, RemapFailed: tt.want}, got)
	}
	if _, err := s.Recovery(t.Context(), gpu.PCIAddress{}); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("a GPU that is not there: got %v, want %v", err, gpu.ErrNotFound)
	}
}

// A GPU that was slow to be opened again has its events, too.
func TestEvents_ReopenedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib, s := eventBed(t, 3)
		end := make(chan struct{})
		lib.devices[1].called = hangsIn("DeviceByPCI", end)
		must(t, s.Release(t.Context(), s.Node().GPUs[0].PCI))
		e, err := s.Events(t.Context())
		must(t, err)
		close(end)
		synctest.Wait()
		if _, _, err := e.Next(time.Second); !errors.Is(err, errRestarted) {
			t.Errorf("got %v, want %v", err, errRestarted)
		}
	})
}
