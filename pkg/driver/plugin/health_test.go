// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/controller"
	"github.com/cleave-dra/cleave/pkg/driver/health"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// healthBed is a simulated node whose health is watched.
type healthBed struct {
	t         *testing.T
	sim       *sim.Node
	hw        *hardware
	health    *gpuHealth
	metrics   *metrics
	events    *objectRecorder
	allocated []*records.Record
	changed   chan struct{}
}

// watchHealth runs a test on a node of a model while the health of its GPUs is watched. Time is the test's own.
func watchHealth(t *testing.T, model string, reaction policy.Health, test func(b *healthBed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n, err := sim.New(model)
		if err != nil {
			t.Fatal(err)
		}
		session, err := simulated.OpenNode(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		b := &healthBed{
			t: t, sim: n, hw: &hardware{Session: session, closed: newClosedGPU()}, metrics: newMetrics(),
			events: &objectRecorder{}, changed: make(chan struct{}, 1),
		}
		known := newGPUHealth("node-1", func() { signal(b.changed) })
		b.health = &known
		offered := policy.Node{Node: session.Node()}
		for range offered.GPUs {
			offered.Offers = append(offered.Offers, policy.Offer{
				Whole: true, TimeSlice: &policy.Sharing{Shares: 4}, MPS: &policy.Sharing{Shares: 4}, Health: reaction,
				Partitions: &policy.PartitionOffer{Mode: policy.OnDemand},
			})
		}
		b.hw.node.Store(&offered)
		monitor := health.NewMonitor(monitored{b.hw}, &healthReporter{
			hw: b.hw, health: b.health, metrics: b.metrics, events: cluster.NewEventsWith(b.events, "n"),
			records: func() []*records.Record { return b.allocated }, migChanged: func() {}, logger: klog.FromContext(t.Context()),
		})
		b.hw.changed = monitor.Forget
		monitor.Start(t.Context())
		defer background(t.Context(), monitor.Run)()
		test(b)
	})
}

// pass lets time pass, and whatever has to happen within it.
func (b *healthBed) pass(d time.Duration) {
	<-time.After(d + time.Millisecond)
	synctest.Wait()
}

func (b *healthBed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// triggered reports whether a publication was triggered since the last call.
func (b *healthBed) triggered() bool {
	select {
	case <-b.changed:
		return true
	default:
		return false
	}
}

// taints are those of the node as "device value:effect".
func (b *healthBed) taints() []string {
	b.t.Helper()
	var all []string
	for _, t := range controller.HealthTaints(b.hw.Node(), b.health.all()) {
		if t.Key != nodeslices.TaintUnhealthy {
			b.t.Errorf("got taint %s, want %s", t.Key, nodeslices.TaintUnhealthy)
		}
		all = append(all, fmt.Sprintf("%s %s:%s", t.Device, t.Value, t.Effect))
	}
	return all
}

// wantEvents checks what Events have been written since, by type, object and reason, and that one says something, and none anything of a
// claim that nothing happened to.
func (b *healthBed) wantEvents(says string, want ...string) {
	b.t.Helper()
	subjects, messages := b.events.typed()
	slices.Sort(subjects)
	if diff := cmp.Diff(want, slices.Compact(subjects)); diff != "" {
		b.t.Errorf("Events (-want +got):\n%s", diff)
	}
	all := strings.Join(slices.Collect(maps.Keys(messages)), "\n")
	if !strings.Contains(all, says) || strings.Contains(all, "bystander") {
		b.t.Errorf("Events say %q, want %q and nothing of the bystander", all, says)
	}
}

// shapes are the names of what GPU i offers, those that keep keeps.
func (b *healthBed) shapes(i int, keep func(s gpu.Shape) bool) []string {
	var names []string
	for _, s := range b.hw.Node().Shapes(&b.hw.Node().GPUs[i]) {
		if keep(s) {
			names = append(names, s.Name())
		}
	}
	return names
}

// holds notes a claim for a device of GPU i.
func (b *healthBed) holds(i int, name string, part *gpu.Partition) {
	b.allocated = append(b.allocated, &records.Record{
		Claim: records.Claim{Namespace: "ns", Name: name, UID: "uid-of-claim"}, State: records.Prepared,
		Devices: []records.Device{{GPU: b.hw.Node().GPUs[i].PCI.DeviceName(), Partition: part}},
	})
}

func every(gpu.Shape) bool { return true }

func tainted(names []string, taint string) []string {
	var all []string
	for _, n := range names {
		all = append(all, n+" "+taint)
	}
	return all
}

func TestHealth_GPULost(t *testing.T) {
	for _, effect := range []string{"", "NoSchedule", "NoExecute", "None"} {
		watchHealth(t, "hgx-h100", policy.Health{Effect: effect}, func(b *healthBed) {
			b.holds(1, "holder", nil)
			b.holds(0, "bystander", nil)
			b.pass(time.Second)
			if got := b.taints(); got != nil {
				t.Errorf("a node that is well has taints %v", got)
			}
			b.must(b.sim.Hardware().RaiseXID(1, 79))
			b.must(b.sim.Hardware().Lose(1))
			b.pass(2 * time.Second)
			if diff := cmp.Diff(tainted(b.shapes(1, every), "gpu-lost:"+effect), b.taints()); diff != "" {
				t.Errorf("taints (-want +got):\n%s", diff)
			}
			if !b.triggered() {
				t.Error("no publication was triggered")
			}
			b.wantEvents("Claims that use it: ns/holder", "Warning Node /n n GPUUnhealthy", "Warning ResourceClaim ns/holder uid-of-claim GPUUnhealthy")
			b.must(b.sim.Faults().Clear(1))
			b.pass(10 * time.Second)
			if got := b.taints(); got != nil {
				t.Errorf("after the GPU came back: %v", got)
			}
			b.wantEvents("recovered from", "Normal Node /n n GPURecovered", "Normal ResourceClaim ns/holder uid-of-claim GPURecovered")
		})
	}
}

func TestHealth_Partition(t *testing.T) {
	watchHealth(t, "hgx-h100", policy.Health{}, func(b *healthBed) {
		g := &b.hw.Node().GPUs[0]
		b.must(b.hw.SetMIG(b.t.Context(), g.PCI, true))
		shapes := map[int]gpu.Shape{} // by start
		for _, s := range g.Shapes() {
			if s.IsPartition() && s.Profile.Name == "1g.10gb" {
				shapes[s.Placement.Start] = s
			}
		}
		parts := map[int]gpu.Partition{}
		for _, start := range []int{0, 2} {
			part, err := b.hw.CreatePartition(b.t.Context(), shapes[start])
			b.must(err)
			parts[start] = part
		}
		sick, sound := parts[2], parts[0]
		b.holds(0, "holder", &sick)
		b.holds(0, "bystander", &sound)
		b.pass(time.Second)
		b.events.typed()
		b.must(b.sim.Hardware().Raise(0, sim.Event{Type: sim.EventXID, Data: 94, GPUInstance: uint32(sick.GI)}))
		b.pass(time.Second)
		want := b.shapes(0, func(s gpu.Shape) bool { return s.Overlaps(shapes[2]) })
		if diff := cmp.Diff(tainted(want, "xid-94:"), b.taints()); diff != "" || len(want) < 5 {
			t.Errorf("taints (-want +got):\n%s", diff)
		}
		b.wantEvents("XID 94", "Warning Node /n n GPUUnhealthy", "Warning ResourceClaim ns/holder uid-of-claim GPUUnhealthy")
		b.pass(health.Probation + 10*time.Second)
		if got := b.taints(); got != nil {
			t.Errorf("a minute later: %v", got)
		}
	})
}

func TestHealth_IgnoredXIDs(t *testing.T) {
	watchHealth(t, "hgx-h100", policy.Health{IgnoreXIDs: []int{74}}, func(b *healthBed) {
		b.pass(time.Second)
		for _, xid := range []uint64{13, 31, 31, 74} {
			b.must(b.sim.Hardware().RaiseXID(0, xid))
		}
		b.pass(time.Second)
		of := func(i int) string { return "gpu=" + b.hw.Node().GPUs[i].PCI.DeviceName() }
		var healthy, xids []string
		for i := range 8 {
			healthy = append(healthy, "cleave_gpu_healthy{"+of(i)+"} 1")
		}
		for _, count := range []string{"xid=13} 1", "xid=31} 2", "xid=74} 1"} {
			xids = append(xids, "cleave_xid_total{"+of(0)+","+count)
		}
		if diff := cmp.Diff(healthy, series(t, b.metrics.healthy)); diff != "" {
			t.Errorf("healthy (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(xids, series(t, b.metrics.xids)); diff != "" {
			t.Errorf("XIDs (-want +got):\n%s", diff)
		}
		if got := b.taints(); got != nil {
			t.Errorf("got taints %v, want none", got)
		}
		b.wantEvents("")
		b.must(b.sim.Hardware().RaiseXID(1, 48))
		b.pass(time.Second)
		healthy[1] = "cleave_gpu_healthy{" + of(1) + "} 0"
		if diff := cmp.Diff(healthy, series(t, b.metrics.healthy)); diff != "" {
			t.Errorf("healthy after an error (-want +got):\n%s", diff)
		}
	})
}

func TestHealth_EventsFail(t *testing.T) {
	watchHealth(t, "hgx-h100", policy.Health{}, func(b *healthBed) {
		b.pass(time.Second)
		b.must(b.sim.Faults().FailCall("nvmlEventSetWait_v2", sim.CodeGPUIsLost))
		b.pass(time.Second)
		b.sim.Calls().Reset()
		b.pass(10 * time.Minute)
		// Each GPU is asked twice over every minute, and so often when a wait has failed: by four calls each time.
		if calls := b.sim.Calls().Total(); calls > 1200 {
			t.Errorf("%d NVML calls in ten minutes", calls)
		}
		b.must(b.sim.Hardware().RaiseXID(0, 79)) // nobody hears it
		b.must(b.sim.Hardware().SetRecoveryAction(0, 2))
		b.pass(time.Minute)
		if got := b.taints(); len(got) == 0 || !strings.HasSuffix(got[0], "needs-reboot:") {
			t.Errorf("without events: got %v, want that the driver is asked what it wants", got)
		}
	})
}

// A GPU that is closed for a change of its MIG mode keeps its taint, unless it was reset into another mode.
func TestHealth_Reset(t *testing.T) {
	watchHealth(t, "dgx-a100", policy.Health{Effect: "NoSchedule"}, func(b *healthBed) {
		ctx, pci := b.t.Context(), b.hw.Session.Node().GPUs[1].PCI
		b.must(b.sim.Hardware().RaiseXID(1, 95))
		b.pass(2 * time.Second)
		want := tainted(b.shapes(1, every), "xid-95:NoSchedule")
		b.must(b.hw.Release(ctx, pci))
		b.pass(5 * time.Second)
		if diff := cmp.Diff(want, b.taints()); diff != "" {
			t.Errorf("taints while it is closed (-want +got):\n%s", diff)
		}
		b.must(b.hw.Retake(ctx, pci))
		b.pass(12 * time.Second)
		if diff := cmp.Diff(want, b.taints()); diff != "" {
			t.Errorf("taints after a reset that failed (-want +got):\n%s", diff)
		}
		b.events.typed()
		b.must(b.hw.Release(ctx, pci))
		b.must(b.sim.Init())
		_, err := b.sim.Device(1).MIG().SetMIGMode(true)
		b.must(errors.Join(err, b.sim.Shutdown()))
		b.must(b.hw.Retake(ctx, pci))
		b.pass(2 * time.Second)
		if got := b.taints(); got != nil {
			t.Errorf("taints after the reset: %v", got)
		}
		b.wantEvents("recovered from", "Normal Node /n n GPURecovered")
	})
}

// A poll that fails while its GPU is removed may be reported after the removal. The GPU that comes back and is well has no taint.
func TestHealth_Removed(t *testing.T) {
	watchHealth(t, "hgx-h100", policy.Health{}, func(b *healthBed) {
		all := b.hw.Node()
		node, pci := *all.Node, all.GPUs[0].PCI
		node.GPUs = node.GPUs[1:]
		b.hw.node.Store(&policy.Node{Node: &node, Offers: all.Offers[1:]})
		b.health.set(pci, nil)
		b.health.set(pci, []health.Condition{{Reason: health.ReasonAbsent}})
		b.pass(2 * time.Second)
		b.triggered()
		b.hw.node.Store(all)
		b.pass(2 * time.Second)
		if got := b.taints(); got != nil || !b.triggered() {
			t.Errorf("the GPU is back and well: got taints %v, want none, and a publication", got)
		}
		b.pass(10 * time.Minute)
		if b.triggered() {
			t.Error("a publication was triggered, though nothing changes")
		}
	})
}

// unhealthy are the devices of a report that are not well, as "pool/device: message".
func unhealthy(r kubeletplugin.DeviceHealthReport) []string {
	var all []string
	for _, d := range r.Devices {
		if d.Health != kubeletplugin.HealthStatusHealthy {
			all = append(all, fmt.Sprintf("%s/%s %s: %s", d.PoolName, d.DeviceName, d.Health, d.Message))
		}
	}
	return all
}

func TestWatchHealthStatus(t *testing.T) {
	watchHealth(t, "hgx-h100", policy.Health{Effect: "None"}, func(b *healthBed) {
		ctx, cancel := context.WithCancel(b.t.Context())
		reports := make(chan kubeletplugin.DeviceHealthReport)
		ended := make(chan error)
		p := &plugin{health: b.health}
		go func() { ended <- p.WatchHealthStatus(ctx, reports) }()
		first := <-reports
		devices := 8 * len(b.shapes(0, every))
		if got := unhealthy(first); len(first.Devices) != devices || got != nil {
			t.Errorf("the first report has %d devices, want %d, and of them unwell %v", len(first.Devices), devices, got)
		}
		for range 5 {
			last := time.Now()
			if r := <-reports; len(r.Devices) != devices || time.Since(last) > 20*time.Second || r.Devices[0].LastUpdated.IsZero() {
				t.Errorf("after %s: %d devices as of %s", time.Since(last), len(r.Devices), r.Devices[0].LastUpdated)
			}
		}
		b.must(b.sim.Hardware().RaiseXID(1, 119))
		raised := time.Now()
		var want []string
		for _, s := range b.shapes(1, every) {
			want = append(want, "node-1/"+s+" Unhealthy: XID 119: GPU system processor error")
		}
		if diff := cmp.Diff(want, unhealthy(<-reports)); diff != "" || time.Since(raised) > 2*time.Second {
			t.Errorf("after %s (-want +got):\n%s", time.Since(raised), diff)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the stream ended with %v", err)
		}
	})
}

func TestWatchHealthStatus_Stale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newGPUHealth("node-1", func() {})
		ctx, cancel := context.WithCancel(t.Context())
		reports := make(chan kubeletplugin.DeviceHealthReport, 100)
		go func() { _ = h.watch(ctx, reports) }()
		<-time.After(50 * time.Second)
		synctest.Wait()
		if got := len(reports); got != 3 {
			t.Errorf("%d reports in 50 s while the driver is waited for, want one every 20 s", got)
		}
		session, err := simulated.Open(t.Context(), "t4")
		if err != nil {
			t.Fatal(err)
		}
		h.report(&policy.Node{Node: session.Node()}, time.Now())
		<-time.After(5 * time.Minute)
		synctest.Wait()
		if got := len(reports); got != 4 {
			t.Errorf("%d reports though nobody has looked for five minutes, want no more than the one", got-3)
		}
		cancel()
	})
}
