// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// Fragmentation is that of the node, see packing.Fragmentation.
func Fragmentation(node *policy.Node, all []*records.Record) float64 {
	var gpus []packing.GPU
	var devices []packing.Device
	at := map[string]int{}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		gpus = append(gpus, packing.GPU{Name: g.PCI.DeviceName()})
		counters := g.Counters()
		for _, s := range node.Shapes(g) {
			at[s.Name()] = len(devices)
			d := packingDevice(s, node.Offer(g), counters)
			d.GPU = i
			devices = append(devices, d)
		}
	}
	state := packing.NewState(packing.NewModel(nil, nil, gpus, devices), packing.NewBits(len(devices)))
	for _, r := range all {
		for i := range r.Devices {
			d := &r.Devices[i]
			if device, ok := at[d.Device]; ok && !d.AdminAccess && !d.Released {
				state.Allocate(packing.Use{Device: device, Amounts: amounts(d)})
			}
		}
	}
	return packing.Fragmentation(state)
}

// packingDevice converts a shape for the measure: nothing is searched for, so its consumption is left out.
func packingDevice(s gpu.Shape, offer *policy.Offer, counters []gpu.Counter) packing.Device {
	d := packing.Device{Name: s.Name(), Shared: s.IsShare()}
	for _, c := range s.ConsumesOf(counters) {
		if gpu.IsSliceCounter(c.Name) {
			d.Size++
		}
	}
	d.Size = max(d.Size, 1)
	if s.IsShare() {
		sharing := offer.Sharing(s)
		for _, total := range []int64{sharing.Shares, sharing.Memory.Total, sharing.Cores.Total} {
			d.Capacities = append(d.Capacities, packing.Capacity{Total: total})
		}
	}
	return d
}

// amounts are a share's amounts of the capacities of packingDevice; nil for other devices.
func amounts(d *records.Device) []int64 {
	if d.Share == nil || d.Share.Exclusive {
		return nil
	}
	return []int64{d.Share.Shares, d.Share.Memory, d.Share.Cores}
}
