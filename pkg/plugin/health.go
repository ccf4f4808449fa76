// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/health"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/publish"
	"github.com/cleave-dra/cleave/pkg/records"
)

// emptyEvery is the time between reports to the kubelet while there is no device to report: silence for longer than 30 s
// would count as an error.
const emptyEvery = 20 * time.Second

// gpuHealth is what is known of the health of the node's GPUs. The zero value knows nothing and tells nobody.
type gpuHealth struct {
	pool string
	// changed has a value after conditions of a GPU have changed.
	changed chan struct{}

	mu         sync.Mutex
	conditions map[gpu.PCIAddress][]health.Condition
	report     kubeletplugin.DeviceHealthReport
	// next is closed when there is a newer report.
	next chan struct{}
}

func newGPUHealth(pool string) gpuHealth {
	return gpuHealth{
		pool: pool, changed: make(chan struct{}, 1),
		conditions: map[gpu.PCIAddress][]health.Condition{}, next: make(chan struct{}),
	}
}

// of are the conditions of a GPU, the worst first.
func (h *gpuHealth) of(pci gpu.PCIAddress) []health.Condition {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conditions[pci]
}

// set notes the conditions of a GPU.
func (h *gpuHealth) set(pci gpu.PCIAddress, conditions []health.Condition) {
	h.mu.Lock()
	h.conditions[pci] = conditions
	h.mu.Unlock()
	signal(h.changed)
}

// taints are those of devices that have something of a GPU in trouble: one each, for the worst of it.
func (h *gpuHealth) taints(node *policy.Node) []publish.Taint {
	var taints []publish.Taint
	for i := range node.GPUs {
		g := &node.GPUs[i]
		conditions := h.of(g.PCI)
		if len(conditions) == 0 {
			continue
		}
		t := publish.Taint{Key: publish.TaintUnhealthy}
		offer := node.Offer(g)
		t.Effect = resourceapi.DeviceTaintEffect(offer.Health.Effect)
		for _, s := range offer.Shapes(g) {
			if bad := covering(conditions, s); len(bad) > 0 {
				t.Device, t.Value = s.Name(), bad[0].Reason
				taints = append(taints, t)
			}
		}
	}
	return taints
}

// covering are the conditions that are about something that a shape has.
func covering(conditions []health.Condition, s gpu.Shape) []health.Condition {
	return slices.DeleteFunc(slices.Clone(conditions), func(c health.Condition) bool { return !c.Covers(s) })
}

// tell makes a report of the health of all devices for the kubelet. Whoever calls it vouches for what is known being so
// now.
func (h *gpuHealth) tell(node *policy.Node, now time.Time) {
	report := kubeletplugin.DeviceHealthReport{}
	for i := range node.GPUs {
		conditions := h.of(node.GPUs[i].PCI)
		for _, s := range node.Shapes(&node.GPUs[i]) {
			d := kubeletplugin.DeviceHealth{PoolName: h.pool, DeviceName: s.Name(), Health: kubeletplugin.HealthStatusHealthy, LastUpdated: now}
			if bad := covering(conditions, s); len(bad) > 0 {
				d.Health, d.Message = kubeletplugin.HealthStatusUnhealthy, messages(bad)
			}
			report.Devices = append(report.Devices, d)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.report = report
	close(h.next)
	h.next = make(chan struct{})
}

// latest is the last report, and a channel that is closed when there is a newer one.
func (h *gpuHealth) latest() (kubeletplugin.DeviceHealthReport, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.report, h.next
}

// watch sends each report until ctx ends. A report of devices is never repeated: should the GPUs not be looked at any
// more, the kubelet has to come to know.
func (h *gpuHealth) watch(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	for {
		report, next := h.latest()
		select {
		case <-ctx.Done():
			return nil
		case reports <- report:
		}
		var idle <-chan time.Time
		if len(report.Devices) == 0 {
			idle = time.After(emptyEvery)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		case <-idle:
		}
	}
}

// messages words conditions for people.
func messages(conditions []health.Condition) string {
	var all []string
	for _, c := range conditions {
		all = append(all, c.Message)
	}
	return strings.Join(all, "; ")
}

// watchHealth looks at the health of all GPUs once, and then watches it until ctx ends or what is returned is called, which
// can be called again.
func (s *service) watchHealth(ctx context.Context, hw *hardware) (end func()) {
	m := health.NewMonitor(monitored{hw}, &healthReporter{
		hw: hw, health: &s.health, metrics: s.metrics, events: s.events, records: s.engine.AllRecords, migChanged: s.changed,
		logger: klog.FromContext(ctx),
	})
	ctx, cancel := context.WithCancel(ctx)
	m.Start(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { m.Run(ctx) })
	return func() {
		cancel()
		wg.Wait()
	}
}

// monitored is hardware as the monitor wants it.
type monitored struct{ *hardware }

// Node is the inventory as published.
func (m monitored) Node() *gpu.Node { return m.hardware.Node().Node }

// IgnoredXIDs are those that the policy of a GPU passes over.
func (m monitored) IgnoredXIDs(g *gpu.GPU) []int { return m.hardware.Node().Offer(g).Health.IgnoreXIDs }

func (m monitored) Events(ctx context.Context) (health.Events, error) {
	events, err := m.hardware.Events(ctx)
	if err != nil {
		return nil, err // and no Events that hold a nil pointer
	}
	return events, nil
}

// healthReporter passes on what the monitor finds.
type healthReporter struct {
	hw         *hardware
	health     *gpuHealth
	metrics    *metrics
	events     *nodeEvents
	records    func() []*records.Record
	migChanged chan<- struct{}
	logger     klog.Logger
}

func (r *healthReporter) MIGChanged() { signal(r.migChanged) }
func (r *healthReporter) Alive()      { r.health.tell(r.hw.Node(), time.Now()) }

func (r *healthReporter) XID(g *gpu.GPU, e gpu.Event) {
	r.metrics.xids.WithLabelValues(g.PCI.DeviceName(), strconv.Itoa(e.XID)).Inc()
	r.logger.V(2).Info("XID", "xid", e.XID, "gpuInstance", e.GI, "gpu", g.PCI.DeviceName(), "uuid", g.UUID)
}

// Changed tells metrics, log, node, claims and, by the publisher, the scheduler.
func (r *healthReporter) Changed(c health.Change) {
	name := nameOf(c.GPU)
	healthy := 1.0
	if len(c.Now) > 0 {
		healthy = 0
	}
	r.metrics.healthy.WithLabelValues(c.GPU.PCI.DeviceName()).Set(healthy)
	if len(c.Began)+len(c.Ended) == 0 {
		return
	}
	r.health.set(c.GPU.PCI, c.Now)
	if len(c.Began) > 0 {
		holders := r.holders(c.GPU, c.Began)
		r.logger.Error(errors.New(messages(c.Began)), "A GPU is in trouble", "gpu", c.GPU.PCI.DeviceName(), "uuid", c.GPU.UUID,
			"conditions", c.Now, "claims", holders)
		r.events.warn("GPUUnhealthy", name+": "+messages(c.Began)+heldBy(holders))
		for _, claim := range holders {
			r.events.warnClaim(claim, "GPUUnhealthy", name+": "+messages(c.Began))
		}
	}
	if len(c.Ended) > 0 {
		r.logger.Info("Trouble of a GPU is over", "gpu", c.GPU.PCI.DeviceName(), "uuid", c.GPU.UUID, "ended", c.Ended, "left", c.Now)
	}
	if len(c.Ended) > 0 && len(c.Now) == 0 {
		r.events.note("GPURecovered", name+" is well again after: "+messages(c.Ended))
		for _, claim := range r.holders(c.GPU, c.Ended) {
			r.events.noteClaim(claim, "GPURecovered", name+" is well again after: "+messages(c.Ended))
		}
	}
}

// nameOf names a GPU in Events.
func nameOf(of *gpu.GPU) string {
	return fmt.Sprintf("GPU %s (%s, %s)", of.PCI.DeviceName(), of.UUID, of.ProductName)
}

// heldBy ends a sentence with the claims that it concerns.
func heldBy(claims []records.Claim) string {
	if len(claims) == 0 {
		return ""
	}
	var names []string
	for _, c := range claims {
		names = append(names, c.String())
	}
	return ". Claims that have it: " + strings.Join(names, ", ")
}

// holders are the claims that have something of a GPU that one of the conditions is about.
func (r *healthReporter) holders(of *gpu.GPU, conditions []health.Condition) []records.Claim {
	var holders []records.Claim
	for _, record := range r.records() {
		if record.State == records.Prepared && slices.ContainsFunc(record.Devices, func(d records.Device) bool {
			shape := of.Whole()
			if d.Partition != nil {
				shape.Profile, shape.Placement = &gpu.Profile{}, d.Partition.Placement
			}
			return d.GPU == of.PCI.DeviceName() && !d.AdminAccess && len(covering(conditions, shape)) > 0
		}) {
			holders = append(holders, record.Claim)
		}
	}
	return holders
}
