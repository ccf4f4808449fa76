// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// Allocation is a device that a claim has, and a pod that uses it.
type Allocation struct {
	Tier v1alpha1.Tier
	// UUID is that of the GPU. Instance and Profile are those of a partition: the ID of its GPU instance and a name such as
	// "1g.10gb"; PartitionUUID is that of its MIG device.
	UUID, Instance, Profile, PartitionUUID string
	Namespace, Claim, Pool, Device         string
	// Pod is empty if the claim's pods are unknown.
	Pod string
}

// Allocations are the devices of prepared claims, once for each pod, in order of records, devices and pods. A claim that has
// several shares of one device is listed once. Devices with admin access are left out: they are observed, not used. node is nil
// while the driver is unavailable.
func Allocations(node *gpu.Node, all []*records.Record, pods func(types.UID) []string) []Allocation {
	var list []Allocation
	seen := map[Allocation]bool{}
	for _, r := range all {
		if r.State != records.Prepared || !isRecorded(r) {
			continue // its partitions may not exist
		}
		users := pods(r.Claim.UID)
		if len(users) == 0 {
			users = []string{""}
		}
		for i := range r.Devices {
			if r.Devices[i].AdminAccess {
				continue
			}
			a := allocation(node, r.Claim, &r.Devices[i])
			for _, a.Pod = range users {
				if !seen[a] {
					seen[a] = true
					list = append(list, a)
				}
			}
		}
	}
	return list
}

func allocation(node *gpu.Node, claim records.Claim, d *records.Device) Allocation {
	a := Allocation{Tier: TierOf(d), UUID: d.UUID, Namespace: claim.Namespace, Claim: claim.Name, Pool: d.Pool, Device: d.Device}
	if p := d.Partition; p != nil {
		a.Instance, a.PartitionUUID = strconv.Itoa(p.GI), p.UUID
		if g := find(node, d.GPU); g != nil {
			a.Profile = g.MIG.ProfileName(p.ProfileID)
		}
	}
	return a
}

func find(node *gpu.Node, device string) *gpu.GPU {
	if node == nil {
		return nil
	}
	return node.Find(device)
}

// States counts records by state.
func States(all []*records.Record) map[records.State]int {
	states := map[records.State]int{}
	for _, r := range all {
		if isRecorded(r) {
			states[r.State]++
		}
	}
	return states
}

// isRecorded reports whether there is a record on disk, whose devices have UUIDs. Otherwise the record reflects an unprepared claim
// in the API server (claims.Ledger.Allocations).
func isRecorded(r *records.Record) bool {
	return !slices.ContainsFunc(r.Devices, func(d records.Device) bool { return d.UUID == "" })
}

// Taints counts the devices of a node that have a taint, by its key.
func Taints(node *policy.Node, taints []nodeslices.Taint) map[string]int {
	keys := map[string]int{}
	for _, t := range taints {
		keys[t.Key]++
	}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		for _, s := range node.Shapes(g) {
			if node.Offer(g).IsWithdrawn(s) {
				keys[nodeslices.TaintWithdrawn]++
			}
		}
	}
	return keys
}
