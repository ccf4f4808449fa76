// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/driver/processes"
	"github.com/cleave-dra/cleave/pkg/driver/usage"
)

// sampler looks at the GPUs that claims have, see docs/decisions/usage-by-claim.md.
type sampler struct {
	every     time.Duration
	inventory func() *gpu.Node
	read      func(ctx context.Context, pci gpu.PCIAddress, q nvml.UseQuery) (gpu.Reading, error)
	records   func() []*records.Record
	owners    func(ctx context.Context, pids []int) (map[int]processes.Owner, error)
	to        *usedCollector

	mu sync.Mutex
	// busy are the GPUs that are being looked at: a slow one is left out until then.
	busy  map[gpu.PCIAddress]bool
	looks sync.WaitGroup
}

func newSampler(s *service, hw *hardware) *sampler {
	return &sampler{every: s.config.UsageEvery, inventory: hw.Session.Node, read: nvml.NewMeter(hw.Session).Read,
		records: s.engine.Ledger.Allocations,
		owners:  processes.Host().Owners, to: s.metrics.used, busy: map[gpu.PCIAddress]bool{}}
}

// run looks until ctx ends.
func (s *sampler) run(ctx context.Context) {
	if s.every == 0 {
		return
	}
	defer s.looks.Wait()
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	for {
		s.pass(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// pass begins a look at each GPU that a claim has, and waits for none.
func (s *sampler) pass(ctx context.Context) {
	node := s.inventory()
	holdings := usage.Holdings(node, s.records())
	s.to.keep(holdings)
	for i := range node.GPUs {
		g := &node.GPUs[i]
		of := slices.DeleteFunc(slices.Clone(holdings), func(h usage.Holding) bool { return h.GPU != g.PCI.DeviceName() })
		if len(of) > 0 && s.begin(g.PCI) {
			s.looks.Go(func() {
				defer s.end(g.PCI)
				if err := s.look(ctx, g, of); err != nil && ctx.Err() == nil {
					klog.FromContext(ctx).V(2).Info("No figures of what claims use", "gpu", g.PCI.DeviceName(), "reason", err.Error())
				}
			})
		}
	}
}

func (s *sampler) begin(pci gpu.PCIAddress) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy[pci] {
		return false
	}
	s.busy[pci] = true
	return true
}

func (s *sampler) end(pci gpu.PCIAddress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, pci)
}

// look looks at a GPU.
func (s *sampler) look(ctx context.Context, g *gpu.GPU, of []usage.Holding) error {
	reading, err := s.read(ctx, g.PCI, queryOf(of))
	if err != nil {
		return err
	}
	owners, err := s.owners(ctx, pidsOf(&reading))
	if err != nil && !errors.Is(err, processes.ErrHidden) {
		return err
	}
	s.to.observe(usage.Look{GPU: g.PCI.DeviceName(), UUID: g.UUID, Reading: reading, Holdings: of, Owners: ownersOf(owners)})
	return nil
}

// queryOf asks for what holdings of a GPU need: of shares of a GPU, GPM for one that is alone there.
func queryOf(of []usage.Holding) nvml.UseQuery {
	q := nvml.UseQuery{GPM: map[int]string{}}
	users := map[int]int{}
	for _, h := range of {
		users[h.GI]++
		q.GPM[h.GI] = string(h.Claim) + "/" + h.Device
		q.Samples = q.Samples || h.Share != "" && h.GI == gpu.WholeGPU
	}
	for gi, n := range users {
		if n > 1 {
			delete(q.GPM, gi)
		}
	}
	return q
}

func pidsOf(r *gpu.Reading) []int {
	var pids []int
	for _, p := range r.Processes {
		pids = append(pids, p.PID)
	}
	for _, s := range r.Samples {
		pids = append(pids, s.PID)
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// mpsServer begins the name of MPS servers, which is longer than the kernel keeps.
const mpsServer = "nvidia-cuda-mps"

func ownersOf(found map[int]processes.Owner) usage.Owners {
	if found == nil {
		return nil
	}
	owners := usage.Owners{}
	for pid, o := range found {
		owners[pid] = usage.Owner{Pod: o.Pod, Started: o.Started, MPS: strings.HasPrefix(o.Name, mpsServer)}
	}
	return owners
}

// usedCollector reports what claims do with their devices.
type usedCollector struct {
	mu      sync.Mutex
	tracker *usage.Tracker
	// every is the interval of looks.
	every time.Duration
	// source provides the claims; nil until the records were read.
	source func() *usageSource
	now    func() time.Time
}

func newUsedCollector(source func() *usageSource) *usedCollector {
	return &usedCollector{tracker: usage.NewTracker(), source: source, now: time.Now}
}

func (c *usedCollector) observe(l usage.Look) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tracker.Observe(l)
}

func (c *usedCollector) keep(holdings []usage.Holding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tracker.Keep(holdings)
}

// used lists what was seen in the last two intervals, and the most that was seen before.
func (c *usedCollector) used() []usage.Used {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tracker.Used(c.now().Add(-2 * c.every))
}

// The labels are those of cleave_claim_info, and the figure's source. pod is empty for a claim of several pods, so that its figures
// are there once.
var (
	usedLabels     = []string{"UUID", "GPU_I_ID", "namespace", "pod", "dra_claim_name", "dra_device_name", "source"}
	usedMemoryDesc = usageDesc("cleave_claim_memory_used_bytes", "Memory that the processes of a claim use of a device.", usedLabels...)
	usedSMDesc     = usageDesc("cleave_claim_sm_active_ratio",
		"Activity of the multiprocessors, 0 to 1: of a device by its claim, or of a GPU by a share of it.", usedLabels...)
	usedDRAMDesc = usageDesc("cleave_claim_dram_active_ratio",
		"Activity of the memory's bandwidth, 0 to 1: of a device by its claim, or of a GPU by a share of it.", usedLabels...)
	usedEnergyDesc = usageDesc("cleave_claim_energy_joules_total",
		"Part of a GPU's energy that is apportioned to a claim, since the plugin's start.", usedLabels...)
	usedActiveDesc = usageDesc("cleave_claim_last_active_timestamp_seconds",
		"Last time at which a claim may have been active, or since when it was looked at; none where its activity is not known.", usedLabels...)
	seenLabels     = usedLabels[:len(usedLabels)-1]
	seenMemoryDesc = usageDesc("cleave_claim_memory_used_max_bytes",
		"Most memory that the processes of a claim were seen to use of a device.", seenLabels...)
	seenSMDesc = usageDesc("cleave_claim_sm_active_max_ratio",
		"Most activity of the multiprocessors that was seen between two looks, as in cleave_claim_sm_active_ratio.", seenLabels...)
	seenMemoryForDesc = usageDesc("cleave_claim_memory_seen_seconds_total",
		"For how long the memory of a claim was known: the most may be more in the rest of the time since the first look.", seenLabels...)
	seenSMForDesc = usageDesc("cleave_claim_sm_seen_seconds_total",
		"For how long the activity of a claim was known: the most may be more in the rest of the time since the first look.", seenLabels...)
	seenSinceDesc = usageDesc("cleave_claim_first_look_timestamp_seconds",
		"Since when a claim is looked at: since it was prepared, or since the plugin's start.", seenLabels...)
)

// Describe implements prometheus.Collector.
func (*usedCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{usedMemoryDesc, usedSMDesc, usedDRAMDesc, usedEnergyDesc, usedActiveDesc, seenMemoryDesc,
		seenSMDesc, seenMemoryForDesc, seenSMForDesc, seenSinceDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *usedCollector) Collect(to chan<- prometheus.Metric) {
	source := c.source()
	if source == nil {
		return
	}
	byUID := source.byUID()
	sent := map[string]bool{} // a claim's name can be that of an earlier one, whose record is still there
	for _, u := range c.used() {
		labels := labelsOf(byUID[u.Claim], u.Device, source.pods(u.Claim))
		if key := strings.Join(labels, "/"); labels != nil && !sent[key] {
			sent[key] = true
			collectUsed(to, &u, labels)
			collectSeen(to, &u.Seen, c.every, labels)
		}
	}
}

// labelsOf are those of a claim's device, without the source; nil for a claim that is gone.
func labelsOf(r *records.Record, device string, pods []string) []string {
	if r == nil {
		return nil
	}
	at := slices.IndexFunc(r.Devices, func(d records.Device) bool { return d.Device == device })
	if at < 0 {
		return nil
	}
	d, instance, pod := &r.Devices[at], "", ""
	if d.Partition != nil {
		instance = strconv.Itoa(d.Partition.GI)
	}
	if len(pods) == 1 {
		pod = pods[0]
	}
	return []string{d.UUID, instance, r.Claim.Namespace, pod, r.Claim.Name, device}
}

func collectUsed(to chan<- prometheus.Metric, u *usage.Used, labels []string) {
	sendUsed := func(desc *prometheus.Desc, kind prometheus.ValueType, value *float64, source usage.Source) {
		if value != nil {
			to <- prometheus.MustNewConstMetric(desc, kind, *value, append(slices.Clone(labels), string(cmp.Or(source, usage.SourceDevice)))...)
		}
	}
	if u.Memory != nil {
		memory := float64(*u.Memory)
		sendUsed(usedMemoryDesc, prometheus.GaugeValue, &memory, usage.SourceProcess)
	}
	sendUsed(usedSMDesc, prometheus.GaugeValue, u.SM, u.Source)
	sendUsed(usedDRAMDesc, prometheus.GaugeValue, u.DRAM, u.Source)
	sendUsed(usedEnergyDesc, prometheus.CounterValue, u.Energy, usage.SourceDevice) // the counter is the GPU's
	if u.LastActive != nil {
		at := float64(u.LastActive.UnixMilli()) / 1000
		sendUsed(usedActiveDesc, prometheus.GaugeValue, &at, u.Source)
	}
}

// collectSeen sends the most that was seen. A look is as long as the interval of looks: one that is late counts once, a missed one not.
func collectSeen(to chan<- prometheus.Metric, s *usage.Seen, every time.Duration, labels []string) {
	if s.Memory != nil {
		send(to, seenMemoryDesc, float64(*s.Memory), labels...)
	}
	if s.SM != nil {
		send(to, seenSMDesc, *s.SM, labels...)
	}
	send(to, seenSinceDesc, float64(s.Since.UnixMilli())/1000, labels...)
	count := func(desc *prometheus.Desc, looks int) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(looks)*every.Seconds(), labels...)
	}
	count(seenMemoryForDesc, s.MemoryLooks)
	count(seenSMForDesc, s.SMLooks)
}
