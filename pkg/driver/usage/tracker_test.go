// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// at is the time of the nth look.
func at(n int) time.Time { return epoch.Add(time.Duration(n) * 15 * time.Second) }

// equal fails unless the two are equal.
func equal(t testing.TB, what string, want, got any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func ptr[T any](v T) *T { return &v }

// Claims of tests: a pod of the same name each.
func wholeGPU(claim types.UID) Holding {
	return Holding{Key: Key{claim, "gpu"}, GPU: "gpu", GI: gpu.WholeGPU, Pods: []types.UID{claim}, Part: 1, OfDevice: 1}
}

func instance(claim types.UID, gi int, part float64) Holding {
	return Holding{Key: Key{claim, "mig-" + string(rune('0'+gi))}, GPU: "gpu", GI: gi, Pods: []types.UID{claim}, Part: part, OfDevice: part}
}

func shared(claim types.UID, kind gpu.Share, part float64) Holding {
	return Holding{Key: Key{claim, "gpu-" + string(kind)}, GPU: "gpu", GI: gpu.WholeGPU, Pods: []types.UID{claim}, Share: kind, Part: part, OfDevice: 1}
}

// figures are what a test expects, in round numbers.
type figures struct {
	Memory       uint64
	SM, Energy   float64
	Source       Source
	IdleSince    int // the look
	NoMemory     bool
	NoActivity   bool
	EnergyAbsent bool
}

func figuresOf(u Used) figures {
	f := figures{Source: u.Source, NoMemory: u.Memory == nil, NoActivity: u.SM == nil, EnergyAbsent: u.Energy == nil}
	if u.Memory != nil {
		f.Memory = *u.Memory
	}
	if u.SM != nil {
		f.SM = *u.SM
	}
	if u.Energy != nil {
		f.Energy = *u.Energy
	}
	if u.LastActive != nil {
		f.IdleSince = int(u.LastActive.Sub(epoch) / (15 * time.Second))
	}
	return f
}

// sample is that of a process after the nth look.
func sample(pid, n int, sm float64) gpu.ProcessSample {
	return gpu.ProcessSample{PID: pid, At: at(n).Add(time.Second), SM: sm}
}

func gpmOf(gi int, sm float64) map[int]gpu.Activity { return map[int]gpu.Activity{gi: {SM: &sm}} }

func TestTracker(t *testing.T) {
	none := []gpu.Process{}
	in := func(pid, gi int, memory uint64) gpu.Process { return gpu.Process{PID: pid, GI: gi, Memory: &memory} }
	const whole = gpu.WholeGPU
	owners := Owners{1: {Pod: "a"}, 2: {Pod: "b"}, 8: {}, 9: {MPS: true, Pod: "supervisor"}, 7: {Pod: "stranger"}}
	type reading = gpu.Reading
	tests := map[string]struct {
		holdings []Holding
		before   []Holding // at the first look, if others
		readings [2]reading
		owners   Owners
		want     map[types.UID]figures
	}{
		"a whole GPU, by GPM": {
			holdings: []Holding{wholeGPU("a")},
			readings: [2]reading{{Energy: ptr[uint64](1000)}, {
				Processes: []gpu.Process{in(1, whole, 5), in(8, whole, 100)}, GPM: gpmOf(whole, .4), Energy: ptr[uint64](3001000),
			}},
			want: map[types.UID]figures{"a": {Memory: 5, SM: .4, Source: SourceGPM, Energy: 3000, IdleSince: 1}},
		},
		"a whole GPU before Hopper": {
			holdings: []Holding{wholeGPU("a")},
			readings: [2]reading{{}, {Processes: none, Device: &gpu.Activity{SM: ptr(.0)}}},
			want:     map[types.UID]figures{"a": {Source: SourceDevice, EnergyAbsent: true}},
		},
		"partitions": {
			holdings: []Holding{instance("a", 7, .125), instance("b", 8, .25)},
			readings: [2]reading{{Energy: ptr[uint64](0)}, {
				Processes: []gpu.Process{in(1, 7, 5), in(2, 8, 6)}, Energy: ptr[uint64](1500000),
				GPM: map[int]gpu.Activity{7: {SM: ptr(.5)}, 8: {SM: ptr(0.)}},
			}},
			// all power is idle power until less was seen
			want: map[types.UID]figures{
				"a": {Memory: 5, SM: .5, Source: SourceGPM, Energy: 187.5, IdleSince: 1}, "b": {Memory: 6, Source: SourceGPM, Energy: 375}},
		},
		"partitions before Hopper: no activity, and so no energy": {
			holdings: []Holding{instance("a", 7, .125)},
			readings: [2]reading{{Energy: ptr[uint64](0)}, {Processes: none, Energy: ptr[uint64](1500000)}},
			want:     map[types.UID]figures{"a": {NoActivity: true, EnergyAbsent: true}},
		},
		"a partition of no claim works, too": {
			holdings: []Holding{instance("a", 7, .125)},
			readings: [2]reading{{Energy: ptr[uint64](0)}, {Processes: []gpu.Process{in(8, 9, 1)}, GPM: gpmOf(7, .5), Energy: ptr[uint64](1500)}},
			want:     map[types.UID]figures{"a": {SM: .5, Source: SourceGPM, EnergyAbsent: true, IdleSince: 1}},
		},
		"time slices": {
			holdings: []Holding{shared("a", gpu.TimeSlice, .5), shared("b", gpu.TimeSlice, .5)},
			readings: [2]reading{{}, {Processes: []gpu.Process{in(1, whole, 5), in(2, whole, 6)}, Samples: []gpu.ProcessSample{sample(1, 0, .25)}}},
			want: map[types.UID]figures{
				"a": {Memory: 5, SM: .25, Source: SourceProcess, EnergyAbsent: true, IdleSince: 1}, "b": {Memory: 6, Source: SourceProcess, EnergyAbsent: true}},
		},
		"the MPS server works for somebody": {
			holdings: []Holding{shared("a", gpu.MPS, .5), shared("b", gpu.MPS, .5)},
			readings: [2]reading{{}, {Processes: []gpu.Process{in(1, whole, 5), in(9, whole, 6)}, Samples: []gpu.ProcessSample{sample(9, 0, .25)}}},
			want: map[types.UID]figures{"a": {Memory: 5, NoActivity: true, EnergyAbsent: true},
				"b": {NoMemory: true, NoActivity: true, EnergyAbsent: true}},
		},
		"alone on the MPS server": {
			holdings: []Holding{shared("a", gpu.MPS, .5)},
			readings: [2]reading{{}, {Processes: []gpu.Process{in(9, whole, 6)}, Samples: []gpu.ProcessSample{sample(9, 0, .25)}, GPM: gpmOf(whole, .2)}},
			want:     map[types.UID]figures{"a": {NoMemory: true, SM: .2, Source: SourceGPM, EnergyAbsent: true, IdleSince: 1}},
		},
		"a process lived for a second: nobody is idle for sure": {
			holdings: []Holding{shared("a", gpu.TimeSlice, .5), shared("b", gpu.TimeSlice, .5)},
			readings: [2]reading{{}, {Processes: none, Samples: []gpu.ProcessSample{sample(55, 0, .9), sample(1, 0, .25)}}},
			want: map[types.UID]figures{"a": {SM: .25, Source: SourceProcess, EnergyAbsent: true, IdleSince: 1},
				"b": {Source: SourceProcess, EnergyAbsent: true, IdleSince: 1}},
		},
		"a PID is used again": {
			holdings: []Holding{shared("a", gpu.TimeSlice, .5)},
			readings: [2]reading{{}, {Processes: []gpu.Process{in(1, whole, 5)}, Samples: []gpu.ProcessSample{sample(1, 0, .9)}}},
			owners:   Owners{1: {Pod: "a", Started: at(0).Add(2 * time.Second)}},
			want:     map[types.UID]figures{"a": {Memory: 5, Source: SourceProcess, EnergyAbsent: true, IdleSince: 1}},
		},
		"processes of the host": {
			holdings: []Holding{shared("a", gpu.TimeSlice, .5)},
			readings: [2]reading{{}, {Processes: []gpu.Process{in(8, whole, 5)}, Samples: []gpu.ProcessSample{sample(8, 0, .9)}}},
			want:     map[types.UID]figures{"a": {Source: SourceProcess, EnergyAbsent: true}},
		},
		"processes cannot be seen": {
			holdings: []Holding{wholeGPU("a"), shared("b", gpu.TimeSlice, .5)},
			readings: [2]reading{{}, {Processes: none, Samples: []gpu.ProcessSample{}, GPM: gpmOf(5, 1)}},
			owners:   Owners(nil),
			want: map[types.UID]figures{"a": {NoMemory: true, NoActivity: true, EnergyAbsent: true},
				"b": {NoMemory: true, NoActivity: true, EnergyAbsent: true}},
		},
		"memory that the driver does not know": {
			holdings: []Holding{wholeGPU("a")},
			readings: [2]reading{{}, {Processes: []gpu.Process{{PID: 1, GI: whole}}, GPM: gpmOf(whole, .4)}},
			want:     map[types.UID]figures{"a": {NoMemory: true, SM: .4, Source: SourceGPM, EnergyAbsent: true, IdleSince: 1}},
		},
		"a pod that is not on record": {
			holdings: []Holding{func() Holding { h := wholeGPU("a"); h.MorePods = true; return h }()},
			readings: [2]reading{{}, {Processes: []gpu.Process{in(7, whole, 5)}, GPM: gpmOf(whole, .4)}},
			want:     map[types.UID]figures{"a": {NoMemory: true, SM: .4, Source: SourceGPM, EnergyAbsent: true, IdleSince: 1}},
		},
		"a utilization that cannot be": {
			holdings: []Holding{shared("a", gpu.TimeSlice, .5)},
			readings: [2]reading{{}, {Processes: none, Samples: []gpu.ProcessSample{sample(1, 0, 42), sample(1, 0, .5)}}},
			want:     map[types.UID]figures{"a": {SM: .5, Source: SourceProcess, EnergyAbsent: true, IdleSince: 1}},
		},
		"no utilization that can be": {
			holdings: []Holding{shared("a", gpu.TimeSlice, .5), shared("b", gpu.TimeSlice, .5)},
			readings: [2]reading{{}, {Processes: none, Samples: []gpu.ProcessSample{sample(1, 0, 42)}}},
			want: map[types.UID]figures{"a": {NoActivity: true, EnergyAbsent: true},
				"b": {Source: SourceProcess, EnergyAbsent: true}},
		},
		"no utilization that can be, of a process that has ended": {
			holdings: []Holding{shared("a", gpu.TimeSlice, .5)},
			readings: [2]reading{{}, {Processes: none, Samples: []gpu.ProcessSample{sample(55, 0, 42)}}},
			want:     map[types.UID]figures{"a": {Source: SourceProcess, EnergyAbsent: true, IdleSince: 1}},
		},
		"the driver was reloaded": {
			holdings: []Holding{wholeGPU("a")},
			readings: [2]reading{{Energy: ptr[uint64](9e9)}, {Processes: none, GPM: gpmOf(whole, .4), Energy: ptr[uint64](5)}},
			want:     map[types.UID]figures{"a": {SM: .4, Source: SourceGPM, EnergyAbsent: true, IdleSince: 1}},
		},
		"the counter jumped": {
			holdings: []Holding{wholeGPU("a")},
			readings: [2]reading{{Energy: ptr[uint64](5)}, {Processes: none, GPM: gpmOf(whole, .4), Energy: ptr[uint64](9e9)}},
			want:     map[types.UID]figures{"a": {SM: .4, Source: SourceGPM, EnergyAbsent: true, IdleSince: 1}},
		},
		"the GPU was another claim's": {
			before: []Holding{wholeGPU("z")}, holdings: []Holding{wholeGPU("a")},
			readings: [2]reading{{Energy: ptr[uint64](0)}, {Processes: none, GPM: gpmOf(whole, .4), Energy: ptr[uint64](1000)}},
			want:     map[types.UID]figures{"a": {NoActivity: true, EnergyAbsent: true}},
		},
		"the partition was shared with another claim": {
			before: []Holding{
				{Key: Key{"a", "mig"}, GI: 7, Share: gpu.MPS, Pods: []types.UID{"a"}}, {Key: Key{"b", "mig"}, GI: 7, Share: gpu.MPS}},
			holdings: []Holding{{Key: Key{"a", "mig"}, GI: 7, Share: gpu.MPS, Pods: []types.UID{"a"}}},
			readings: [2]reading{{}, {Processes: []gpu.Process{in(1, 7, 5)}, GPM: gpmOf(7, .4)}},
			want:     map[types.UID]figures{"a": {Memory: 5, NoActivity: true, EnergyAbsent: true}},
		},
		"two claims of a pod on one device": {
			holdings: []Holding{shared("a", gpu.TimeSlice, .5), func() Holding {
				h := shared("b", gpu.TimeSlice, .5)
				h.Pods = []types.UID{"a"}
				return h
			}()},
			readings: [2]reading{{}, {Processes: []gpu.Process{in(1, whole, 5)}, Samples: []gpu.ProcessSample{sample(1, 0, .5)}}},
			want: map[types.UID]figures{"a": {NoMemory: true, NoActivity: true, EnergyAbsent: true},
				"b": {NoMemory: true, NoActivity: true, EnergyAbsent: true}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tracker := NewTracker()
			who := tt.owners
			if who == nil && name != "processes cannot be seen" {
				who = owners
			}
			for i, r := range tt.readings {
				r.At = at(i)
				look := Look{GPU: "gpu", UUID: "GPU-1", Reading: r, Holdings: tt.holdings, Owners: who}
				if i == 0 && tt.before != nil {
					look.Holdings = tt.before
				}
				tracker.Observe(look)
			}
			tracker.Keep(tt.holdings)
			got := map[types.UID]figures{}
			for _, u := range tracker.Used(at(0)) {
				got[u.Claim] = figuresOf(u)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateApprox(0, 1e-6)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Idle power is learnt: what is above it is that of the active claim.
func TestTracker_EnergyAboveIdle(t *testing.T) {
	tracker, total := NewTracker(), uint64(0)
	holdings := []Holding{instance("busy", 7, .125), instance("idle", 8, .5)}
	for n, joules := range []uint64{0, 1500, 4500} { // 100 W, then 300 W
		total += joules * 1000
		active := map[int]gpu.Activity{7: {SM: ptr(float64(n / 2))}, 8: {SM: ptr(0.)}}
		tracker.Observe(Look{GPU: "gpu", Holdings: holdings, Owners: Owners{},
			Reading: gpu.Reading{At: at(n), Energy: ptr(total), Processes: []gpu.Process{}, GPM: active}})
	}
	got := map[types.UID]float64{}
	for _, u := range tracker.Used(time.Time{}) {
		got[u.Claim] = *u.Energy
	}
	equal(t, "joules", map[types.UID]float64{"busy": 2*1500*.125 + 3000, "idle": 2 * 1500 * .5}, got, cmpopts.EquateApprox(0, 1e-6))
}

// A silent GPU has no figures after two intervals, and an idle claim is idle since its last activity.
func TestTracker_IdleAndStale(t *testing.T) {
	tracker := NewTracker()
	for n, sm := range []float64{0, .5, .3, 0, .005, 0} {
		tracker.Observe(Look{GPU: "gpu", Holdings: []Holding{wholeGPU("a")}, Owners: Owners{},
			Reading: gpu.Reading{At: at(n), Processes: []gpu.Process{}, GPM: gpmOf(gpu.WholeGPU, sm)}})
	}
	if got := tracker.Used(at(4)); len(got) != 1 || !got[0].LastActive.Equal(at(2)) {
		t.Errorf("got %+v, want it idle since %v", got, at(2))
	}
	want := []Used{{Key: Key{"a", "gpu"}, At: at(5), Seen: Seen{Since: at(0), Memory: ptr[uint64](0), SM: ptr(.5), MemoryLooks: 6, SMLooks: 5}}}
	equal(t, "of a GPU that is silent", want, tracker.Used(at(5)))
	tracker.Keep(nil)
	if got := tracker.Used(time.Time{}); len(got) != 0 {
		t.Errorf("got %+v of a claim that is gone", got)
	}
}

// Whatever claims do, they get at most what the GPU has consumed, and nobody's part is negative.
func TestApportion_NeverMoreThanTheTotal(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		claims := make([]portion, random.IntN(9))
		for i := range claims {
			claims[i] = portion{random.Float64() * float64(random.IntN(2)), random.Float64() * float64(random.IntN(2))}
		}
		joules, idle, other := random.Float64()*1e4, random.Float64()*2e4, random.Float64()*float64(random.IntN(2))
		sum := 0.0
		for _, part := range apportion(joules, idle, other, claims) {
			if sum += part; part < 0 || math.IsNaN(part) {
				t.Fatalf("%v of %v J gives %v", claims, joules, part)
			}
		}
		if sum > joules*(1+1e-9) {
			t.Fatalf("%v of %v J, idle %v, gives %v", claims, joules, idle, sum)
		}
	}
}

func TestHoldings(t *testing.T) {
	node, g := open(t)
	mig := partition(t, g, "1g.10gb", 0, 9)
	exclusive := whole(g)
	exclusive.Share = &records.Share{ID: records.ExclusiveID, Kind: gpu.TimeSlice, Exclusive: true}
	admin := whole(g)
	admin.AdminAccess = true
	total := memoryOf(g)
	two := recordOf(g, "two", share(g, gpu.TimeSlice, 1, total/4, 0), share(g, gpu.TimeSlice, 1, total/4, 0))
	two.OwnerPod, two.Pods = "pod", []types.UID{"pod"}
	leaving := recordOf(g, "leaving", whole(g))
	leaving.State = records.Releasing
	all := []*records.Record{recordOf(g, "whole", exclusive), recordOf(g, "watch", admin), recordOf(g, "mig", mig), two, leaving,
		recordOf(g, "uncounted", share(g, gpu.MPS, 1, 0, 0)), recordOf(g, "double", share(g, gpu.MPS, 3, 0, 0))}
	name := g.PCI.DeviceName()
	of := func(claim, device string, h Holding) Holding {
		h.Key, h.GPU = Key{types.UID("uid-" + claim), device}, name
		h.MorePods = claim != "two"
		return h
	}
	want := []Holding{
		of("whole", name, Holding{GI: gpu.WholeGPU, Part: 1, OfDevice: 1}),
		of("mig", mig.Device, Holding{GI: 9, Part: 16. / 132, OfDevice: 16. / 132}),
		of("two", name+"-timeslice", Holding{GI: gpu.WholeGPU, Share: gpu.TimeSlice, Part: .5, OfDevice: 1, Pods: []types.UID{"pod"}}),
		of("uncounted", name+"-mps", Holding{GI: gpu.WholeGPU, Share: gpu.MPS, Part: .25, OfDevice: 1}),
		of("double", name+"-mps", Holding{GI: gpu.WholeGPU, Share: gpu.MPS, Part: .75, OfDevice: 1}),
	}
	if diff := cmp.Diff(want, Holdings(node.Node, all), cmpopts.EquateApprox(.001, 0)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, h := range Holdings(nil, all) {
		if h.Part != 0 {
			t.Errorf("%v has a part of a GPU that is away", h)
		}
	}
}
