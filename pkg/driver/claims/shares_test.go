// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
)

var errDown = errors.New("the supervisor is down")

func TestShares_MPS(t *testing.T) {
	b := newBed(t)
	got := b.prepare("a", mpsOf(1, 25, 20))
	want := deviceFor("mps", 1)
	want.Device += "-mps"
	want.Share = &records.Share{
		ID: "a-0", Kind: gpu.MPS, Shares: 1, Cores: 25, Memory: 20 * gi,
		MPS: &records.MPS{ThreadPercentage: 25, Memory: 20 * gi, PipeDir: "/run/mps/" + gpuName(1) + "/pipe", ShmDir: "/run/mps/" + gpuName(1) + "/shm"},
	}
	want.CDIDeviceIDs = append(want.CDIDeviceIDs, testDriver+"/claim=a-"+want.Device)
	equal(t, "devices", []records.Device{want}, got)
	b.prepare("b", mpsOf(1, 50, 40))
	b.want("record a", "record b", "spec a", "spec b", "mps 1 a", "mps 1 b")
	b.unprepare("a")
	b.want("record b", "spec b", "mps 1 b")
	b.unprepare("a") // again
	b.unprepare("b")
	b.want()
}

func TestShares_TwoOfOneClaim(t *testing.T) {
	tests := map[string]struct {
		parts []part
		want  []string
	}{
		"time slices of one GPU":    {[]part{sliceOf(0, 20).of("x"), sliceOf(0, 30).of("y")}, nil},
		"time slices of two GPUs":   {[]part{sliceOf(0, 20), sliceOf(1, 20)}, nil},
		"MPS shares of one request": {[]part{mpsOf(0, 20, 20), mpsOf(0, 30, 20)}, list("mps 0 a")},
		"MPS shares of one GPU":     {[]part{mpsOf(0, 20, 20).of("x"), mpsOf(0, 30, 20).of("y")}, list("mps 0 a")},
		"MPS shares of two GPUs":    {[]part{mpsOf(0, 20, 20), mpsOf(1, 20, 20).of("y")}, list("mps 0 a", "mps 1 a")},
		"a time slice and MPS":      {[]part{sliceOf(0, 20).at("Long"), mpsOf(1, 20, 20)}, list("mps 1 a", "interval 0 Long")},
		"a share and a whole GPU":   {[]part{mpsOf(0, 20, 20), wholeOf(1)}, list("mps 0 a")},
		"two with the same wish":    {[]part{sliceOf(0, 20).at("Long").of("x"), sliceOf(0, 20).at("Long").of("y")}, list("interval 0 Long")},
		"two with different wishes": {[]part{sliceOf(0, 20).at("Long").of("x"), sliceOf(1, 20).at("Short").of("y")}, list("interval 0 Long", "interval 1 Short")},
		"one with a wish":           {[]part{sliceOf(0, 20).of("x"), sliceOf(0, 20).at("Short").of("y")}, list("interval 0 Short")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			var ids []string
			for _, d := range b.prepare("a", tt.parts...) {
				if d.Share != nil {
					ids = append(ids, d.Share.ID)
				}
			}
			if slices.Sort(ids); len(ids) != len(slices.Compact(ids)) {
				t.Errorf("got share ids %v, want each once", ids)
			}
			b.want(append(tt.want, "record a", "spec a")...)
			b.prepare("a", tt.parts...) // the kubelet asks again
			b.want(append(tt.want, "record a", "spec a")...)
			b = b.restart()
			b.want(append(tt.want, "record a", "spec a")...)
			b.unprepare("a")
			b.want()
		})
	}
}

func TestShares_KindsExclude(t *testing.T) {
	forms := map[string]part{
		"whole": wholeOf(0), "time slice": sliceOf(0, 20), "MPS": mpsOf(0, 20, 20),
		"alone in time": aloneAt(0, "Long"), "alone by MPS": aloneMPS(0, ""),
	}
	for first, held := range forms {
		for second, wanted := range forms {
			t.Run(first+" before "+second, func(t *testing.T) {
				b := newCompatibleBed(t)
				b.prepare("a", held)
				before := b.state()
				err := b.tryPrepare("b", wanted)
				if first == second && held.result.ShareID != nil {
					if err != nil {
						t.Errorf("a second share: %v", err)
					}
					return
				}
				wantError(t, err, "ns/claim-a (a)", gpuName(0))
				b.want(before...)
				b.unprepare("a")
				b.prepare("b", wanted)
			})
		}
	}
}

func TestShares_AdminAccess(t *testing.T) {
	b := newBed(t)
	b.prepare("watch", part{result: adminShare(0, gpu.MPS)})
	b.want("record watch")
	b.prepare("a", sliceOf(0, 80))
	b.prepare("watch2", part{result: adminShare(0, gpu.TimeSlice)})
	b.want("record watch", "record watch2", "record a", "spec a")
	b.unprepare("watch")
	b.unprepare("watch2")
	b.unprepare("a")
	b.want()
}

func TestShares_TooMuch(t *testing.T) {
	tests := map[string]struct {
		held, wanted []part
		want         []string
	}{
		"memory in time":               {[]part{sliceOf(0, 60)}, []part{sliceOf(0, 21)}, list("memory", fmt.Sprint(81*gi), fmt.Sprint(80*gi), gpuName(0)+"-timeslice")},
		"memory by MPS":                {[]part{mpsOf(0, 10, 60)}, []part{mpsOf(0, 10, 21)}, list("memory", gpuName(0)+"-mps")},
		"cores":                        {[]part{mpsOf(0, 60, 8)}, []part{mpsOf(0, 41, 8)}, list("cores", "101 of 100")},
		"memory of one claim's shares": {nil, []part{sliceOf(1, 60).of("x"), sliceOf(1, 21).of("y")}, list("memory", gpuName(1))},
		"cores of one claim's shares":  {nil, []part{mpsOf(1, 60, 8).of("x"), mpsOf(1, 41, 8).of("y")}, list("cores")},
		"more than there is at once":   {nil, []part{sliceOf(0, 81)}, list("memory")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			if tt.held != nil {
				b.prepare("a", tt.held...)
			}
			before := b.state()
			wantError(t, b.tryPrepare("b", tt.wanted...), append(tt.want, `request "`+tt.wanted[0].result.Request+`"`)...)
			b.want(before...)
		})
	}
}

func TestShares_AllOfGPU(t *testing.T) {
	b := newBed(t)
	b.prepare("a", mpsOf(0, 60, 60))
	b.prepare("b", mpsOf(0, 40, 20))
	b.prepare("c", mpsOf(1, 100, 80))
	b.prepare("b", mpsOf(0, 40, 20)) // its own do not count twice
	b.unprepare("a")
	b.prepare("d", mpsOf(0, 60, 60))
	b.want("record b", "record c", "record d", "spec b", "spec c", "spec d", "mps 0 b", "mps 0 d", "mps 1 c")
}

func TestShares_FirstInterval(t *testing.T) {
	b := newBed(t)
	b.sharing.took()
	set := func(interval string) string { return "SetTimeSlice " + gpuName(0) + " " + interval }
	b.prepare("none", sliceOf(0, 10))
	b.wantCalls()
	b.prepare("long", sliceOf(0, 10).at("Long"))
	b.wantCalls(set("Long"))
	wantError(t, b.tryPrepare("short", sliceOf(0, 10).at("Short")), `request "slice"`, "Long", "ns/claim-long (long)", "Short", gpuName(0)+"-timeslice")
	wantError(t, b.tryPrepare("default", sliceOf(0, 10).at("Default")), "ns/claim-long (long)")
	b.wantCalls()
	b.prepare("same", sliceOf(0, 10).at("Long"))
	b.prepare("none2", sliceOf(0, 10))
	b.prepare("elsewhere", sliceOf(1, 10).at("Short"))
	b.wantCalls("SetTimeSlice " + gpuName(1) + " Short")
	b.unprepare("long")
	b.unprepare("none")
	b.wantCalls()
	b.want("record same", "record none2", "record elsewhere", "spec same", "spec none2", "spec elsewhere", "interval 0 Long", "interval 1 Short")
	b.unprepare("same")
	b.wantCalls(set("Default"))
	b.prepare("short", sliceOf(0, 10).at("Short"))
	b.wantCalls(set("Short"))
	b.unprepare("none2")
	b.unprepare("short")
	b.unprepare("elsewhere")
	b.want()

	b.sharing.took()
	err := b.tryPrepare("a", sliceOf(0, 10).at("Long").of("x"), sliceOf(0, 10).at("Short").of("y"))
	wantError(t, err, `request "x"`, "Long", "Short", "one interval")
	b.prepare("a", sliceOf(0, 10).at("Long").of("x"), sliceOf(0, 10).at("Long").of("y"))
	b.unprepare("a")
	b.wantCalls(set("Long"), set("Default"))
	b.want()
}

func TestShares_ServerDoesNotStart(t *testing.T) {
	for _, at := range []string{"before StartMPS", "after StartMPS"} { // after: it runs, but the answer is lost
		t.Run(at, func(t *testing.T) {
			b := newBed(t)
			b.prepare("other", mpsOf(1, 10, 10))
			b.sharing.took()
			b.sharing.err = failing(at+" "+gpuName(1), errDown)
			err := b.tryPrepare("a", mpsOf(0, 10, 10).of("x"), mpsOf(1, 10, 10).of("y"))
			if !errors.Is(err, errDown) {
				t.Errorf("got %v, want %v", err, errDown)
			}
			wantError(t, err, `request "y"`)
			b.want("record other", "spec other", "mps 1 other")
			b.wantCalls("StartMPS "+gpuName(0)+" a", "StartMPS "+gpuName(1)+" a", "StopMPS "+gpuName(0)+" a", "StopMPS "+gpuName(1)+" a")
			b.sharing.err = nil
			b.prepare("a", mpsOf(0, 10, 10).of("x"), mpsOf(1, 10, 10).of("y"))
			b.want("record other", "spec other", "mps 1 other", "record a", "spec a", "mps 0 a", "mps 1 a")
		})
	}
}

func TestShares_NotShared(t *testing.T) {
	b := newBed(t)
	b.prepare("before", mpsOf(1, 10, 10))
	left := b.state()
	b.Shares.sharing = nil
	b.Recover(t.Context())
	for _, p := range []part{mpsOf(0, 10, 10), sliceOf(0, 10).at("Long")} {
		wantError(t, b.tryPrepare("a", p), "does not share GPUs")
	}
	b.prepare("a", sliceOf(0, 10))
	b.unprepare("a")
	b.unprepare("unknown")
	b.Reconcile(t.Context(), &fakeAPI{claims: claimList(claimFor("before", mpsOf(1, 10, 10)))})
	b.want(left...)
}

// offeredHardware is a session whose GPUs offer what a test says.
type offeredHardware struct {
	*nvml.Session
	offers []policy.Offer
}

func (o offeredHardware) Node() *policy.Node {
	return &policy.Node{Node: o.Session.Node(), Offers: o.offers}
}
