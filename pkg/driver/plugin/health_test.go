// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/record"
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
	events    *record.FakeRecorder
	allocated []*records.Record
	mig       chan struct{}
	changed   chan struct{}
	monitor   *health.Monitor
}

// watchHealth runs a test on a node of eight H100s while their health is watched. Time is the test's own.
func watchHealth(t *testing.T, reaction policy.Health, test func(b *healthBed)) {
	t.Helper()
	watchHealthOf(t, "hgx-h100", reaction, test)
}

func watchHealthOf(t *testing.T, model string, reaction policy.Health, test func(b *healthBed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n, err := sim.New(model)
		if err != nil {
			t.Fatal(err)
		}
		b := newHealthBed(t, n, reaction)
		ctx, cancel := context.WithCancel(t.Context())
		b.monitor.Start(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.monitor.Run(ctx)
		}()
		defer func() {
			cancel()
			<-done
		}()
		test(b)
	})
}

func newHealthBed(t *testing.T, n *sim.Node, reaction policy.Health) *healthBed {
	t.Helper()
	session, err := simulated.OpenNode(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	b := &healthBed{
		t: t, sim: n, hw: &hardware{Session: session, closed: newClosedGPU()}, metrics: newMetrics(),
		events: record.NewFakeRecorder(100), mig: make(chan struct{}, 1), changed: make(chan struct{}, 1),
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
	b.events.IncludeObject = true
	b.monitor = health.NewMonitor(monitored{b.hw}, &healthReporter{
		hw: b.hw, health: b.health, metrics: b.metrics, events: cluster.NewEventsWith(b.events, "n"),
		records: func() []*records.Record { return b.allocated }, migChanged: func() { signal(b.mig) }, logger: klog.Background(), //nolint:forbidigo // no context is at hand
	})
	b.hw.changed = b.monitor.Forget
	return b
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

// heard takes the Events that were written since.
func (b *healthBed) heard() []string {
	var all []string
	for {
		select {
		case e := <-b.events.Events:
			all = append(all, e)
		default:
			return all
		}
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

// gauge is cleave_gpu_healthy by GPU, and counter cleave_xid_total by XID of all GPUs.
func (b *healthBed) gauge() (healthy []float64, xids map[string]float64) {
	b.t.Helper()
	families, err := b.metrics.registry.Gather()
	b.must(err)
	xids = map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch f.GetName() {
			case "cleave_gpu_healthy":
				healthy = append(healthy, m.GetGauge().GetValue())
			case "cleave_xid_total":
				xids[m.GetLabel()[1].GetValue()] += m.GetCounter().GetValue()
			}
		}
	}
	return healthy, xids
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
		watchHealth(t, policy.Health{Effect: effect}, func(b *healthBed) {
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
			select {
			case <-b.changed:
			default:
				t.Error("no publication was triggered")
			}
			checkEvents(t, b.heard(), "Warning GPUUnhealthy Node", "Claims that use it: ns/holder", "Warning GPUUnhealthy ResourceClaim")
			b.must(b.sim.Faults().Clear(1))
			b.pass(10 * time.Second)
			if got := b.taints(); got != nil {
				t.Errorf("after the GPU came back: %v", got)
			}
			checkEvents(t, b.heard(), "Normal GPURecovered Node", "recovered from", "Normal GPURecovered ResourceClaim")
		})
	}
}

// checkEvents looks for parts of Events, and for the name of a claim that nothing happened to.
func checkEvents(t *testing.T, events []string, want ...string) {
	t.Helper()
	all := strings.Join(events, "\n")
	for _, w := range want {
		// FakeRecorder puts the object last.
		words := strings.Fields(w)
		if kind := words[len(words)-1]; kind == "Node" || kind == "ResourceClaim" {
			prefix := strings.Join(words[:len(words)-1], " ")
			if !slices.ContainsFunc(events, func(e string) bool { return strings.HasPrefix(e, prefix) && strings.Contains(e, "kind="+kind) }) {
				t.Errorf("no Event %q about a %s in:\n%s", prefix, kind, all)
			}
		} else if !strings.Contains(all, w) {
			t.Errorf("no %q in:\n%s", w, all)
		}
	}
	if strings.Contains(all, "bystander") {
		t.Errorf("an Event names a claim that it does not concern:\n%s", all)
	}
}

func TestHealth_Partition(t *testing.T) {
	watchHealth(t, policy.Health{}, func(b *healthBed) {
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
		b.heard()
		b.must(b.sim.Hardware().Raise(0, sim.Event{Type: sim.EventXID, Data: 94, GPUInstance: uint32(sick.GI)}))
		b.pass(time.Second)
		want := b.shapes(0, func(s gpu.Shape) bool { return s.Overlaps(shapes[2]) })
		if diff := cmp.Diff(tainted(want, "xid-94:"), b.taints()); diff != "" || len(want) < 5 {
			t.Errorf("taints (-want +got):\n%s", diff)
		}
		checkEvents(t, b.heard(), "Warning GPUUnhealthy Node", "XID 94", "Warning GPUUnhealthy ResourceClaim")
		b.pass(health.Probation + 10*time.Second)
		if got := b.taints(); got != nil {
			t.Errorf("a minute later: %v", got)
		}
	})
}

func TestHealth_IgnoredXIDs(t *testing.T) {
	watchHealth(t, policy.Health{IgnoreXIDs: []int{74}}, func(b *healthBed) {
		b.pass(time.Second)
		for _, xid := range []uint64{13, 31, 31, 74} {
			b.must(b.sim.Hardware().RaiseXID(0, xid))
		}
		b.pass(time.Second)
		healthy, xids := b.gauge()
		if diff := cmp.Diff(slices.Repeat([]float64{1}, 8), healthy); diff != "" {
			t.Errorf("healthy (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]float64{"13": 1, "31": 2, "74": 1}, xids); diff != "" {
			t.Errorf("XIDs (-want +got):\n%s", diff)
		}
		if got, events := b.taints(), b.heard(); got != nil || events != nil {
			t.Errorf("got taints %v and Events %v, want none", got, events)
		}
		b.must(b.sim.Hardware().RaiseXID(1, 48))
		b.pass(time.Second)
		healthy, _ = b.gauge()
		if diff := cmp.Diff([]float64{1, 0, 1, 1, 1, 1, 1, 1}, healthy); diff != "" {
			t.Errorf("healthy after an error (-want +got):\n%s", diff)
		}
	})
}

func TestHealth_EventsFail(t *testing.T) {
	watchHealth(t, policy.Health{}, func(b *healthBed) {
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

func TestHealth_MIGChanged(t *testing.T) {
	watchHealth(t, policy.Health{}, func(b *healthBed) {
		b.pass(time.Second)
		b.must(b.hw.SetMIG(b.t.Context(), b.hw.Node().GPUs[0].PCI, true))
		b.pass(time.Second)
		select {
		case <-b.mig:
		default:
			t.Error("nothing was triggered")
		}
	})
}

// TestHealth_Restart is about the first publication: it must have the taints already.
func TestHealth_Restart(t *testing.T) {
	n, err := sim.New("hgx-h100")
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Hardware().SetRecoveryAction(1, 1); err != nil {
		t.Fatal(err)
	}
	b := newHealthBed(t, n, policy.Health{Effect: "NoExecute"})
	b.monitor.Start(t.Context())
	if diff := cmp.Diff(tainted(b.shapes(1, every), "needs-reset:NoExecute"), b.taints()); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
}

// A GPU that is closed for a change of its MIG mode keeps its taint, unless it was reset into another mode.
func TestHealth_Reset(t *testing.T) {
	watchHealthOf(t, "dgx-a100", policy.Health{Effect: "NoSchedule"}, func(b *healthBed) {
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
		b.heard()
		b.must(b.hw.Release(ctx, pci))
		b.must(b.sim.Init())
		_, err := b.sim.Device(1).MIG().SetMIGMode(true)
		b.must(errors.Join(err, b.sim.Shutdown()))
		b.must(b.hw.Retake(ctx, pci))
		b.pass(2 * time.Second)
		if got := b.taints(); got != nil {
			t.Errorf("taints after the reset: %v", got)
		}
		checkEvents(t, b.heard(), "Normal GPURecovered Node")
	})
}
