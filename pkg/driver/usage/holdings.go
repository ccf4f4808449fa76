// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// Holding is a device that a prepared claim has, or its share of one.
type Holding struct {
	Key
	// GPU is the name of the whole GPU's device, GI the GPU instance, or gpu.WholeGPU.
	GPU string
	GI  int
	// Pods are the claim's, as far as known. MorePods: it may have others, as it was not generated for a pod.
	Pods     []types.UID
	MorePods bool
	// Share is the way in which the device is shared with other claims; empty if it is not.
	Share gpu.Share
	// Part of the GPU that is allocated, and OfDevice the part that the device is, 0 to 1; zero if unknown.
	Part, OfDevice float64
}

// Key identifies a Holding: a claim's shares of one device are one.
type Key struct {
	Claim  types.UID
	Device string
}

// Holdings are the devices of prepared claims, without those with admin access, in order of records and devices. inventory is nil
// while the driver is unavailable.
func Holdings(inventory *gpu.Node, all []*records.Record) []Holding {
	var list []Holding
	shares := map[string]int64{} // by device, of all claims
	counted := map[Key]int64{}   // shares of which no memory is counted
	for _, r := range all {
		if r.State != records.Prepared || !isRecorded(r) {
			continue
		}
		for i := range r.Devices {
			d := &r.Devices[i]
			if d.AdminAccess {
				continue
			}
			h := holdingOf(inventory, r, d)
			if d.IsShared() {
				shares[d.Device] += d.Share.Shares
				if d.Share.Memory == 0 {
					counted[h.Key] += d.Share.Shares
				}
			}
			if at := slices.IndexFunc(list, func(o Holding) bool { return o.Key == h.Key }); at < 0 {
				list = append(list, h)
			} else if d.Share != nil && d.Share.Memory > 0 {
				list[at].Part += h.Part
			}
		}
	}
	for i := range list {
		if n := counted[list[i].Key]; n > 0 {
			list[i].Part *= float64(n) / float64(shares[list[i].Device])
		}
	}
	return list
}

func holdingOf(inventory *gpu.Node, r *records.Record, d *records.Device) Holding {
	h := Holding{
		Key: Key{r.Claim.UID, d.Device}, GPU: d.GPU, GI: gpu.WholeGPU,
		Pods: r.Pods, MorePods: r.OtherConsumers || r.OwnerPod == "",
	}
	if d.Partition != nil {
		h.GI = d.Partition.GI
	}
	g := find(inventory, d.GPU)
	if g == nil {
		return h
	}
	memory := memoryOf(g)
	h.Part = 1
	if d.Partition != nil {
		h.Part, memory = 0, 0
		profile := g.MIG.Profile(d.Partition.ProfileID)
		if most := multiprocessors(g); profile != nil && most > 0 {
			h.Part, memory = float64(profile.Multiprocessors)/float64(most), int64(profile.Memory)
		}
	}
	h.OfDevice = h.Part
	if !d.IsShared() {
		return h
	}
	h.Share = d.Share.Kind
	if d.Share.Memory > 0 {
		if memory == 0 {
			h.Part = 0
		} else {
			h.Part *= min(float64(d.Share.Memory)/float64(memory), 1)
		}
	}
	return h
}
