// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// others are the devices of a GPU that are not of a kind.
func others(i int, kind gpu.Share) []string {
	names := []string{gpuName(i)}
	for _, k := range gpu.Shares() {
		if k != kind {
			names = append(names, gpuName(i)+"-"+string(k))
		}
	}
	return names
}

func TestShares_ServerDoesNotStop(t *testing.T) {
	for _, restart := range []bool{false, true} {
		b := newBed(t)
		b.prepare("a", mpsOf(0, 60, 80))
		changes := 0
		b.Ledger.changed = func() { changes++ }
		b.sharing.err = func(what string) error {
			return errors.Join(failing("before StopMPS "+gpuName(0)+" a", errDown)(what), failing("before RetainMPS", errDown)(what))
		}
		b.specs.err = failing("before RemoveClaim", errDown)
		wantError(t, b.Unprepare(t.Context(), refOf(claimOf("a"))), errDown.Error())
		b.want("record a", "spec a", "mps 0 a")
		b.specs.err = nil
		b.unprepare("a")
		b.want("record a releasing", "mps 0 a")
		if changes != 1 {
			t.Errorf("%d changes were reported, want 1: devices are to be tainted now", changes)
		}
		b.wantOccupied(others(0, gpu.MPS)...)
		b.unprepare("a") // the kubelet asks again
		b.Recover(t.Context())
		b.want("record a releasing", "mps 0 a")
		wantError(t, b.tryPrepare("b", wholeOf(0)), "ns/claim-a (a)")
		wantError(t, b.tryPrepare("b", sliceOf(0, 10)), "ns/claim-a (a)")
		// Its pod has ended, so what it had is for others, as the scheduler knows.
		b.prepare("b", mpsOf(0, 60, 80))
		b.unprepare("b")
		b.sharing.err = nil
		if restart {
			b = b.restart()
		} else {
			b.Recover(t.Context())
		}
		b.want()
		b.wantOccupied()
		b.prepare("b", wholeOf(0))
	}
}

func TestShares_IntervalCannotBeReset(t *testing.T) {
	b := newBed(t)
	b.prepare("a", sliceOf(0, 80).at("Long"))
	b.sharing.err = failing("before SetTimeSlice", errDown)
	b.unprepare("a")
	b.want("record a releasing", "interval 0 Long")
	b.wantOccupied(others(0, gpu.TimeSlice)...)
	b.prepare("b", sliceOf(0, 80))
	b.sharing.err = nil
	b.prepare("c", sliceOf(0, 0).at("Short")) // nobody who runs asked for Long
	b.Recover(t.Context())
	b.want("record b", "spec b", "record c", "spec c", "interval 0 Short")
	b.unprepare("c")
	b.want("record b", "spec b")
}

// A GPU that was removed or replaced stays in the inventory while a claim has it. Its interval is gone; that of one that is lost is not.
func TestShares_IntervalOfGPUThatIsGone(t *testing.T) {
	for err, left := range map[error][]string{
		gpu.ErrAbsent: {"interval 0 Long"}, gpu.ErrReplaced: {"interval 0 Long"}, gpu.ErrLost: {"record a releasing", "interval 0 Long"},
	} {
		b := newBed(t)
		b.prepare("a", sliceOf(0, 80).at("Long"))
		b.sharing.err = failing("before SetTimeSlice", errDown)
		b.hardware.verify = func(context.Context, *gpu.GPU) error { return err }
		b.unprepare("a")
		b.Recover(t.Context())
		b.want(left...)
	}
}

func TestShares_ServerAndSpecLost(t *testing.T) {
	b := newBed(t)
	first := b.prepare("a", mpsOf(0, 10, 10))
	whole := b.state()
	lose := func() {
		t.Helper()
		must(t, b.sharing.StopMPS(t.Context(), "a", gpuName(0)))
		must(t, b.specs.RemoveClaim("a"))
		b.want("record a")
	}
	lose()
	equal(t, "second answer", first, b.prepare("a", mpsOf(0, 10, 10)))
	b.want(whole...)
	lose()
	b.Recover(t.Context())
	b.want(whole...)
	lose()
	b.sharing.err = failing("before StartMPS", errDown)
	if err := b.tryPrepare("a", mpsOf(0, 10, 10)); !errors.Is(err, errDown) {
		t.Errorf("got %v, want %v", err, errDown)
	}
	b.want("record a") // its pods may still run: it keeps what it has until it is unprepared
}

func TestShares_IntervalsRestored(t *testing.T) {
	b := newCompatibleBed(t)
	b.prepare("a", sliceOf(0, 10).at("Long"))
	b.prepare("b", aloneAt(1, "Short"))
	b.prepare("c", mpsOf(2, 10, 10))
	whole := b.state()
	reload := func() { // the driver forgets
		t.Helper()
		for i := range 2 {
			must(t, b.sharing.SetTimeSlice(t.Context(), &b.hardware.node.GPUs[i], "Default"))
		}
		b.SetHardware(b.hardware, b.specs)
	}
	reload()
	b.Recover(t.Context())
	b.want(whole...)
	b.sharing.took()
	b.Recover(t.Context())
	for _, call := range b.sharing.took() {
		if call[:12] == "SetTimeSlice" {
			t.Errorf("%s without need", call)
		}
	}
	reload()
	b.sharing.err = failing("before SetTimeSlice "+gpuName(0), errDown)
	b.Recover(t.Context())
	if got := b.sharing.interval(gpuName(1)); got != "Short" {
		t.Errorf("the trouble of GPU 0 keeps GPU 1 at %q, want Short", got)
	}
	b.sharing.err = nil
	b.Recover(t.Context())
	b.want(whole...)
}

func TestUnprepare_SharesWithoutHardware(t *testing.T) {
	b := newCompatibleBed(t)
	b.prepare("plain", sliceOf(0, 10))
	b.prepare("long", sliceOf(1, 10).at("Long"))
	b.prepare("mps", mpsOf(2, 10, 10))
	b.prepare("alone", aloneAt(3, "Short"))
	// The plugin has just started and has not found the driver yet, which has the interval all the same.
	b.die()
	b = b.another()
	b.load()
	for _, uid := range []types.UID{"plain", "long", "mps", "alone"} {
		b.unprepare(uid)
	}
	b.want("record long releasing", "interval 1 Long", "record alone releasing", "interval 3 Short")
	b.SetHardware(b.hardware, b.specs)
	b.Recover(t.Context())
	b.want()
}

func TestReconcile_SharesOfGoneClaim(t *testing.T) {
	tests := map[string]struct {
		part   part
		shared bool // by another claim, which stays
		busy   bool // processes are on the GPU
		kept   bool
	}{
		"time slice, alone":                     {part: sliceOf(0, 10).at("Long")},
		"time slice, alone, processes":          {part: sliceOf(0, 10).at("Long"), busy: true, kept: true},
		"time slice, shared":                    {part: sliceOf(0, 10), shared: true},
		"time slice, shared, processes":         {part: sliceOf(0, 10), shared: true, busy: true},
		"MPS, alone":                            {part: mpsOf(0, 10, 10)},
		"MPS, alone, its server is on the GPU":  {part: mpsOf(0, 10, 10), busy: true},
		"MPS, shared, its server is on the GPU": {part: mpsOf(0, 10, 10), shared: true, busy: true},
		"alone in time":                         {part: aloneAt(0, "Long")},
		"alone in time, processes":              {part: aloneAt(0, "Long"), busy: true, kept: true},
		"alone by MPS":                          {part: aloneMPS(0, "")},
		"alone by MPS, its server is there":     {part: aloneMPS(0, ""), busy: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newCompatibleBed(t)
			api := &fakeAPI{}
			if tt.shared {
				b.prepare("b", tt.part)
				api.claims = claimList(b.claim("b", tt.part))
			}
			left := b.state()
			b.prepare("a", tt.part)
			if tt.kept {
				left = b.state()
			}
			if tt.busy {
				b.hardware.pids[gpuName(0)] = []int{4711}
			}
			b.Reconcile(t.Context(), api)
			b.want(left...)
		})
	}
}

// The containers of a claim that is gone by force may run on: as long as any process is there, the last share of the
// GPU is not given back, or it would be allocated whole alongside them.
func TestReconcile_LastShareInUse(t *testing.T) {
	b := newBed(t)
	b.prepare("a", sliceOf(0, 10))
	b.prepare("b", sliceOf(0, 10))
	b.hardware.pids[gpuName(0)] = []int{4711}
	for range 2 {
		b.Reconcile(t.Context(), &fakeAPI{})
		b.want("record b", "spec b")
	}
	delete(b.hardware.pids, gpuName(0))
	b.Reconcile(t.Context(), &fakeAPI{})
	b.want()

	// A claim that was unprepared, but has something left to undo, has no processes there.
	b.prepare("ended", sliceOf(0, 10).at("Long"))
	b.prepare("gone", sliceOf(0, 10))
	b.sharing.err = failing("before SetTimeSlice", errDown)
	b.unprepare("ended")
	b.hardware.pids[gpuName(0)] = []int{4711}
	b.Reconcile(t.Context(), &fakeAPI{claims: claimList(claimFor("ended", sliceOf(0, 10).at("Long")))})
	b.want("record ended releasing", "record gone", "spec gone", "interval 0 Long")
}

func TestReconcile_CorruptRecordOfShare(t *testing.T) {
	tests := map[string]struct {
		part      part
		alongside bool // another claim shares the GPU
		broken    []string
	}{
		"MPS":                       {mpsOf(0, 10, 10), true, list("spec a", "mps 0 a")},
		"MPS, the only one":         {mpsOf(0, 10, 10), false, list("spec a", "mps 0 a")},
		"time slice":                {sliceOf(0, 10), true, list("spec a")},
		"time slice, with interval": {sliceOf(0, 10).at("Long"), true, list("spec a", "interval 0 Long")},
		"alone by MPS":              {aloneMPS(0, ""), false, list("spec a", "mps 0 a")},
		"alone in time":             {aloneAt(0, "Long"), false, list("interval 0 Long")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newCompatibleBed(t)
			api := &fakeAPI{claims: claimList(b.claim("a", tt.part))}
			if tt.alongside {
				other := tt.part
				other.interval = ""
				b.prepare("b", other)
				api.claims = append(api.claims, b.claim("b", other))
			}
			alongside := b.state()
			b.prepare("a", tt.part)
			whole := b.state()
			spoil(t, b.dir, "a")
			b = b.restart()
			if len(b.notes) != 1 {
				t.Errorf("got notes %v, want one about the corrupt record", b.notes)
			}
			b.hardware.pids[gpuName(0)] = []int{4711} // the pods run
			b.want(append(slices.Clone(alongside), tt.broken...)...)
			for _, call := range b.sharing.took() {
				if call == "StopMPS "+gpuName(0)+" a" {
					t.Errorf("%s: its pods run", call)
				}
			}
			b.Reconcile(t.Context(), api)
			b.Recover(t.Context())
			b.want(whole...)
			b.unprepare("a")
			b.want(alongside...)
		})
	}
}

func TestTwoProcesses_Shares(t *testing.T) {
	older := newBed(t)
	newer := older.another().start()
	older.prepare("a", mpsOf(0, 60, 60))
	older.prepare("long", sliceOf(1, 10).at("Long"))
	wantError(t, newer.tryPrepare("b", mpsOf(0, 41, 10)), "cores")
	wantError(t, newer.tryPrepare("b", wholeOf(0)), "ns/claim-a (a)")
	wantError(t, newer.tryPrepare("b", sliceOf(1, 10).at("Short")), "ns/claim-long (long)")
	newer.prepare("b", mpsOf(0, 40, 20))
	older.Recover(t.Context()) // must not take b from the server
	newer.want("record a", "record b", "record long", "spec a", "spec b", "spec long", "mps 0 a", "mps 0 b", "interval 1 Long")
	newer.unprepare("a")
	older.unprepare("b")
	newer.unprepare("long")
	older.Recover(t.Context())
	newer.want()
}
