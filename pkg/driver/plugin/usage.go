// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/controller"
	"github.com/cleave-dra/cleave/pkg/driver/usage"
)

// usageCollector computes allocated and free devices when metrics are read, from the last state that the control loop published and
// the records in memory, at no cost to the loop or Prepare.
type usageCollector struct {
	// source is nil until the records were read, published until slices were published.
	source    atomic.Pointer[usageSource]
	published atomic.Pointer[controller.View]
}

// usageSource provides the state. Its functions may be called at any time.
type usageSource struct {
	records func() []*records.Record
	pods    func(types.UID) []string
	// inventory returns nil while the driver is away.
	inventory func() *gpu.Node
}

// byUID are the records by claim.
func (s *usageSource) byUID() map[types.UID]*records.Record {
	found := map[types.UID]*records.Record{}
	for _, r := range s.records() {
		found[r.Claim.UID] = r
	}
	return found
}

// Descriptions. The labels of cleave_claim_info are spelled like those of dcgm-exporter, where it has them
// (github.com/NVIDIA/dcgm-exporter, internal/pkg/rendermetrics/render_metrics.go and internal/pkg/transformation/const.go).
var (
	claimInfoDesc = usageDesc("cleave_claim_info",
		"1 for each device of a prepared claim and each pod that uses it, with labels that join metrics of dcgm-exporter.",
		"UUID", "GPU_I_ID", "GPU_I_PROFILE", "namespace", "pod", "dra_claim_name", "dra_pool_name", "dra_device_name",
		"dra_mig_device_uuid", "tier")
	claimRatioDesc = usageDesc("cleave_claim_allocated_ratio",
		"Part of a GPU that is allocated to a claim, 0 to 1: by a partition's multiprocessors, a share's memory; none where it is unknown.",
		seenLabels...)
	gpuInfoDesc = usageDesc("cleave_gpu_info", "1 for each GPU, with its product name as the driver has it.", "gpu", "UUID", "product")
	claimsDesc  = usageDesc("cleave_claims",
		"Claims on the node: prepared, preparing (interrupted), or releasing (partitions remain).", "state")
	devicesDesc   = usageDesc("cleave_devices", "Devices that are published.", "gpu", "tier")
	allocatedDesc = usageDesc("cleave_devices_allocated", "Devices that are allocated to claims.", "gpu", "tier")
	freeDesc      = usageDesc("cleave_devices_free",
		"Devices that can be allocated now, one of them at a time: partitions of a GPU overlap. Those of tier exclusive are whole GPUs.",
		"gpu", "tier")
	sharesDesc          = usageDesc("cleave_shares", "Shares that an empty GPU has.", "gpu", "tier")
	sharesAllocatedDesc = usageDesc("cleave_shares_allocated", "Shares that are allocated to claims.", "gpu", "tier")
	sharesFreeDesc      = usageDesc("cleave_shares_free",
		"Shares that can be allocated now, each with the least memory and cores.", "gpu", "tier")
	sharesFreeDefaultDesc = usageDesc("cleave_shares_free_default",
		"Shares that can be allocated now to claims that ask for no amounts, each with the default memory and cores.", "gpu", "tier")
	memoryDesc          = usageDesc("cleave_memory_allocatable_bytes", "Memory that claims can be allocated, in any tier.", "gpu")
	memoryAllocatedDesc = usageDesc("cleave_memory_allocated_bytes",
		"Memory that is allocated to claims; none where shares do not count it.", "gpu", "tier")
	coresDesc          = usageDesc("cleave_cores_allocatable", "Percent of a GPU's multiprocessors that claims can be allocated.", "gpu")
	coresAllocatedDesc = usageDesc("cleave_cores_allocated",
		"Percent of a GPU's multiprocessors that is allocated to claims; none where shares do not count it.", "gpu", "tier")
	fragmentationDesc = usageDesc("cleave_fragmentation",
		"Fraction of the free placement units that are on partly allocated GPUs: free, but not as whole GPUs. 0 to 1.")
	taintsDesc = usageDesc("cleave_device_taints", "Devices that have a taint, by its key.", "key")
)

func usageDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (*usageCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{claimInfoDesc, claimRatioDesc, gpuInfoDesc, claimsDesc, devicesDesc, allocatedDesc, freeDesc,
		sharesDesc, sharesAllocatedDesc, sharesFreeDesc, sharesFreeDefaultDesc, memoryDesc, memoryAllocatedDesc, coresDesc, coresAllocatedDesc,
		fragmentationDesc, taintsDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *usageCollector) Collect(to chan<- prometheus.Metric) {
	source, view := c.source.Load(), c.published.Load()
	if source == nil {
		return
	}
	all := source.records()
	collectClaims(to, source, all)
	taints := map[string]int{}
	if view != nil {
		taints = usage.Taints(view.Node, view.Taints)
		for _, g := range usage.Of(view.Node, view.Taints, all) {
			collectGPU(to, &g)
		}
		send(to, fragmentationDesc, usage.Fragmentation(view.Node, all))
	}
	for _, key := range nodeslices.TaintKeys() {
		send(to, taintsDesc, taints[key], key)
	}
}

func collectClaims(to chan<- prometheus.Metric, source *usageSource, all []*records.Record) {
	states := usage.States(all)
	for _, state := range []records.State{records.Prepared, records.Preparing, records.Releasing} {
		send(to, claimsDesc, states[state], cmp.Or(string(state), "prepared"))
	}
	inventory := source.inventory()
	for _, a := range usage.Allocations(inventory, all, source.pods) {
		send(to, claimInfoDesc, 1, a.UUID, a.Instance, a.Profile, a.Namespace, a.Pod, a.Claim, a.Pool, a.Device, a.PartitionUUID, string(a.Tier))
	}
	if inventory == nil {
		return
	}
	byUID := source.byUID()
	sent := map[string]bool{} // as in usedCollector.Collect
	for _, h := range usage.Holdings(inventory, all) {
		labels := labelsOf(byUID[h.Claim], h.Device, source.pods(h.Claim))
		if key := strings.Join(labels, "/"); labels != nil && h.Part > 0 && !sent[key] {
			sent[key] = true
			send(to, claimRatioDesc, h.Part, labels...)
		}
	}
	for i := range inventory.GPUs {
		g := &inventory.GPUs[i]
		send(to, gpuInfoDesc, 1, g.PCI.DeviceName(), g.UUID, g.ProductName)
	}
}

func collectGPU(to chan<- prometheus.Metric, g *usage.GPU) {
	send(to, memoryDesc, g.Memory, g.Device)
	send(to, coresDesc, g.Cores, g.Device)
	for _, t := range g.Tiers {
		tier := string(t.Tier)
		send(to, devicesDesc, t.Devices, g.Device, tier)
		send(to, allocatedDesc, t.Allocated, g.Device, tier)
		send(to, freeDesc, t.Free, g.Device, tier)
		send(to, memoryAllocatedDesc, t.Memory, g.Device, tier)
		send(to, coresAllocatedDesc, t.Cores, g.Device, tier)
		if t.IsShared() {
			send(to, sharesDesc, t.Shares, g.Device, tier)
			send(to, sharesAllocatedDesc, t.SharesAllocated, g.Device, tier)
			send(to, sharesFreeDesc, t.SharesFree, g.Device, tier)
			send(to, sharesFreeDefaultDesc, t.SharesFreeDefault, g.Device, tier)
		}
	}
}

func send[N int | int64 | float64](to chan<- prometheus.Metric, desc *prometheus.Desc, value N, labels ...string) {
	to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
}
