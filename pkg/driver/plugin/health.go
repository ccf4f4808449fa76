// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/controller"
	"github.com/cleave-dra/cleave/pkg/driver/health"
)

// Reasons of Events about the health of GPUs.
const (
	reasonUnhealthy = "GPUUnhealthy" // a GPU, or a part of it, is unhealthy
	reasonRecovered = "GPURecovered" // a GPU is healthy again
)

// emptyEvery is the time between reports to the kubelet while there is no device to report: silence for longer than 30 s
// would count as an error.
const emptyEvery = 20 * time.Second

// gpuHealth holds the health of the node's GPUs. The zero value knows nothing and reports nothing.
type gpuHealth struct {
	pool string
	// changed is called after conditions of a GPU have changed.
	changed func()

	mu         sync.Mutex
	conditions map[gpu.PCIAddress][]health.Condition
	last       kubeletplugin.DeviceHealthReport
	// next is closed when there is a newer report.
	next chan struct{}
	// forget drops the conditions of a GPU that was reset; nil before the health is watched.
	forget func(pci gpu.PCIAddress)
}

func newGPUHealth(pool string, changed func()) gpuHealth {
	return gpuHealth{
		pool: pool, changed: changed,
		conditions: map[gpu.PCIAddress][]health.Condition{}, next: make(chan struct{}),
	}
}

// of returns the conditions of a GPU, the worst first.
func (h *gpuHealth) of(pci gpu.PCIAddress) []health.Condition {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conditions[pci]
}

// set notes the conditions of a GPU.
func (h *gpuHealth) set(pci gpu.PCIAddress, conditions []health.Condition) {
	h.mu.Lock()
	same := slices.EqualFunc(h.conditions[pci], conditions, func(a, b health.Condition) bool { return reflect.DeepEqual(a, b) })
	h.conditions[pci] = conditions
	h.mu.Unlock()
	if !same {
		h.changed()
	}
}

// wasReset ends the conditions of a GPU, as they are those before its reset.
func (h *gpuHealth) wasReset(pci gpu.PCIAddress) {
	h.mu.Lock()
	forget := h.forget
	h.mu.Unlock()
	if forget != nil {
		forget(pci)
	}
}

// all returns the conditions of all GPUs.
func (h *gpuHealth) all() map[gpu.PCIAddress][]health.Condition {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.conditions)
}

// covering returns the conditions that affect a shape.
func covering(conditions []health.Condition, s gpu.Shape) []health.Condition {
	return slices.DeleteFunc(slices.Clone(conditions), func(c health.Condition) bool { return !c.Covers(s) })
}

// report makes a report of the health of all devices for the kubelet. Calling it asserts that the conditions are up to date.
func (h *gpuHealth) report(offered *policy.Node, now time.Time) {
	report := kubeletplugin.DeviceHealthReport{}
	for i := range offered.GPUs {
		conditions := h.of(offered.GPUs[i].PCI)
		for _, s := range offered.Shapes(&offered.GPUs[i]) {
			d := kubeletplugin.DeviceHealth{PoolName: h.pool, DeviceName: s.Name(), Health: kubeletplugin.HealthStatusHealthy, LastUpdated: now}
			if bad := covering(conditions, s); len(bad) > 0 {
				d.Health, d.Message = kubeletplugin.HealthStatusUnhealthy, messages(bad)
			}
			report.Devices = append(report.Devices, d)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = report
	close(h.next)
	h.next = make(chan struct{})
}

// latest returns the last report, and a channel that is closed when there is a newer one.
func (h *gpuHealth) latest() (kubeletplugin.DeviceHealthReport, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last, h.next
}

// watch sends each report until ctx ends. A report of devices is never repeated: if the GPUs are no longer
// checked, the kubelet must notice.
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

// messages formats conditions for people.
func messages(conditions []health.Condition) string {
	var all []string
	for _, c := range conditions {
		all = append(all, c.Message)
	}
	return strings.Join(all, "; ")
}

// watchHealth checks the health of all GPUs once, and then watches it until ctx ends or the returned function is called, which
// can be repeated.
func (s *service) watchHealth(ctx context.Context, hw *hardware) (end func()) {
	m := health.NewMonitor(monitored{hw}, &healthReporter{
		hw: hw, health: &s.health, metrics: s.metrics, events: s.events, records: s.engine.Ledger.Allocations,
		migChanged: func() { s.loop.Mark(controller.Partitions) },
		logger:     klog.FromContext(ctx),
	})
	hw.changed = m.Forget // modes do not change before the loop runs
	s.health.mu.Lock()
	s.health.forget = m.Forget
	s.health.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	m.Start(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { m.Run(ctx) })
	return func() {
		cancel()
		wg.Wait()
	}
}

// monitored adapts the hardware to the health monitor.
type monitored struct{ *hardware }

// Node returns the inventory.
func (m monitored) Node() *gpu.Node { return m.hardware.Node().Node }

// Closed reports whether a GPU is closed for a reset.
func (m monitored) Closed(g *gpu.GPU) bool { return errors.Is(m.Usable(g), gpu.ErrReleased) }

// IgnoredXIDs returns the XIDs that the policy of a GPU ignores.
func (m monitored) IgnoredXIDs(g *gpu.GPU) []int { return m.hardware.Node().Offer(g).Health.IgnoreXIDs }

func (m monitored) Events(ctx context.Context) (health.Events, error) {
	events, err := m.hardware.Events(ctx)
	if err != nil {
		return nil, err // not Events that hold a nil pointer
	}
	return events, nil
}

// healthReporter reports the findings of the monitor.
type healthReporter struct {
	hw         *hardware
	health     *gpuHealth
	metrics    *metrics
	events     *cluster.Events
	records    func() []*records.Record
	migChanged func()
	logger     klog.Logger
}

func (r *healthReporter) MIGChanged() { r.migChanged() }
func (r *healthReporter) Alive()      { r.health.report(r.hw.Node(), time.Now()) }

func (r *healthReporter) XID(g *gpu.GPU, e gpu.Event) {
	r.metrics.xids.WithLabelValues(g.PCI.DeviceName(), strconv.Itoa(e.XID)).Inc()
	r.logger.V(2).Info("XID", "xid", e.XID, "gpuInstance", e.GI, "gpu", g.PCI.DeviceName(), "uuid", g.UUID)
}

// Changed reports to metrics, log, node, claims and, through the control loop, the scheduler.
func (r *healthReporter) Changed(c health.Change) {
	name := controller.Describe(c.GPU)
	healthy := 1.0
	if len(c.Now) > 0 {
		healthy = 0
	}
	r.metrics.healthy.WithLabelValues(c.GPU.PCI.DeviceName()).Set(healthy)
	// Also after the first poll of a GPU that is well: a poll that failed while it was being removed may have been noted after that.
	r.health.set(c.GPU.PCI, c.Now)
	if len(c.Began)+len(c.Ended) == 0 {
		return
	}
	if len(c.Began) > 0 {
		using := r.claims(c.GPU, c.Began)
		r.logger.Error(errors.New(messages(c.Began)), "GPU is unhealthy", "gpu", c.GPU.PCI.DeviceName(), "uuid", c.GPU.UUID,
			"conditions", c.Now, "claims", using)
		r.events.Warn(reasonUnhealthy, name+": "+messages(c.Began)+usedBy(using))
		for _, claim := range using {
			r.events.WarnClaim(claim, reasonUnhealthy, name+": "+messages(c.Began))
		}
	}
	if len(c.Ended) > 0 {
		r.logger.Info("GPU conditions ended", "gpu", c.GPU.PCI.DeviceName(), "uuid", c.GPU.UUID, "ended", c.Ended, "left", c.Now)
	}
	if len(c.Ended) > 0 && len(c.Now) == 0 {
		r.events.Note(reasonRecovered, name+" recovered from: "+messages(c.Ended))
		for _, claim := range r.claims(c.GPU, c.Ended) {
			r.events.NoteClaim(claim, reasonRecovered, name+" recovered from: "+messages(c.Ended))
		}
	}
}

// usedBy returns the end of a sentence: the affected claims.
func usedBy(claims []records.Claim) string {
	if len(claims) == 0 {
		return ""
	}
	var names []string
	for _, c := range claims {
		names = append(names, c.String())
	}
	return ". Claims that use it: " + strings.Join(names, ", ")
}

// claims returns the claims with devices of a GPU that one of the conditions affects.
func (r *healthReporter) claims(of *gpu.GPU, conditions []health.Condition) []records.Claim {
	var using []records.Claim
	for _, record := range r.records() {
		if record.State == records.Prepared && slices.ContainsFunc(record.Devices, func(d records.Device) bool {
			shape := of.Whole()
			if d.Partition != nil {
				shape.Profile, shape.Placement = &gpu.Profile{}, d.Partition.Placement
			}
			return d.GPU == of.PCI.DeviceName() && !d.AdminAccess && len(covering(conditions, shape)) > 0
		}) {
			using = append(using, record.Claim)
		}
	}
	return using
}
