// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// allocations are the known allocations of claims on this node, prepared or not; see Follower.
type allocations struct {
	*index
	// records are the recorded allocations.
	records *index
	// followed is set once a Follower detects deallocations; nothing is noted before.
	followed bool
	// outlasts reports whether a claim's allocation must stay known after its record is removed, until the API server reports it
	// as deallocated.
	outlasts func(r *records.Record) bool
}

// allocation returns a claim's allocation on the node in the form of a record; nil if there is none. A device that cannot be resolved,
// because the node's GPUs are unknown or have no such device, counts as its whole GPU.
func (n *Names) allocation(claim *resourceapi.ResourceClaim, node *gpu.Node) *records.Record {
	driver := n.of(claim)
	if driver == "" {
		return nil
	}
	return allocation(claim, node, n.identity(driver))
}

// allocation is Names.allocation under one driver name. It is pure.
func allocation(claim *resourceapi.ResourceClaim, node *gpu.Node, id Identity) *records.Record {
	if claim.Status.Allocation == nil {
		return nil
	}
	r := &records.Record{
		Format: records.Format, Driver: id.Driver,
		Claim: records.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != id.Driver || result.Pool != id.Pool {
			continue
		}
		d := deviceNamed(result.Device, node)
		d.Request, d.Pool, d.AdminAccess = result.Request, result.Pool, result.AdminAccess != nil && *result.AdminAccess
		if d.Share != nil && result.ShareID != nil {
			d.Share.ID = string(*result.ShareID)
		}
		r.Devices = append(r.Devices, d)
	}
	if len(r.Devices) == 0 {
		return nil
	}
	return r
}

// deviceNamed derives a device from its name.
func deviceNamed(name string, node *gpu.Node) records.Device {
	d := records.Device{Device: name, GPU: name}
	pci, err := gpu.ParseDeviceName(name)
	of, ok := strings.CutPrefix(name, pci.DeviceName())
	if err != nil || !ok {
		return d
	}
	d.GPU = pci.DeviceName()
	for _, kind := range gpu.Shares() {
		if rest, ok := strings.CutSuffix(of, "-"+string(kind)); ok {
			of, d.Share = rest, &records.Share{Kind: kind}
			break
		}
	}
	if of == "" {
		return d
	}
	var g *gpu.GPU
	if node != nil {
		g = node.Find(d.GPU)
	}
	if profileID, start, ok := gpu.ParsePartitionName(name); ok && g != nil {
		d.Partition = partitionAt(g, profileID, start)
	}
	if d.Partition == nil {
		d.Share = nil // it counts as the whole GPU
	}
	return d
}

// partitionAt returns the partition of a profile that begins at a start; nil if the GPU has no such place.
func partitionAt(g *gpu.GPU, profileID, start int) *gpu.Partition {
	if p := g.MIG.Profile(profileID); p != nil {
		for _, placement := range p.Placements {
			if placement.Start == start {
				return &gpu.Partition{ProfileID: p.ID, Placement: placement}
			}
		}
	}
	return nil
}

// allocationOf converts a claim's record to the form that allocation returns.
func allocationOf(r *records.Record) *records.Record {
	of := &records.Record{Format: records.Format, Driver: r.Driver, Claim: r.Claim}
	for _, d := range r.Devices {
		device := records.Device{Request: d.Request, Pool: d.Pool, Device: d.Device, AdminAccess: d.AdminAccess, GPU: d.GPU}
		if d.Partition != nil {
			device.Partition = &gpu.Partition{ProfileID: d.Partition.ProfileID, Placement: d.Partition.Placement}
		}
		if d.IsShared() {
			device.Share = &records.Share{Kind: d.Share.Kind, ID: d.Share.ID}
		}
		of.Devices = append(of.Devices, device)
	}
	return of
}

// placed returns an allocation with its devices resolved against the node's current inventory.
func placed(r *records.Record, node *gpu.Node) *records.Record {
	if node == nil {
		return r
	}
	now := allocationOf(r)
	for i := range now.Devices {
		d := &now.Devices[i]
		named := deviceNamed(d.Device, node)
		if named.Share != nil && r.Devices[i].Share != nil {
			named.Share.ID = r.Devices[i].Share.ID
		}
		d.Partition, d.Share = named.Partition, named.Share
	}
	return now
}

func sameAllocation(a, b *records.Record) bool {
	return sameDevices(a, b) && slices.EqualFunc(a.Devices, b.Devices, func(x, y records.Device) bool {
		return (x.Partition == nil) == (y.Partition == nil)
	})
}

// without removes claims that have a record.
func (a *allocations) without(all []*records.Record) []*records.Record {
	return slices.DeleteFunc(all, func(r *records.Record) bool { return a.records.get(r.Claim.UID) != nil })
}

// unrecordedOn returns the claims that are allocated a device of a GPU but have no record.
func (a *allocations) unrecordedOn(gpuDevice string) gpuRecords {
	on := a.on(gpuDevice, "")
	on.all = a.without(on.all)
	return on
}

// enter notes a claim's allocation. A known allocation is noted again as a copy, so that removeIf sees the difference.
func (a *allocations) enter(r *records.Record) {
	if !a.followed {
		return
	}
	if was := a.get(r.Claim.UID); was != nil && sameAllocation(was, r) {
		r = was.Clone()
	}
	a.set(r)
}

// keep notes a claim's allocation before its record is removed, if it outlasts the record.
func (a *allocations) keep(r *records.Record) {
	if a.outlasts(r) {
		a.enter(allocationOf(r))
	}
}

// noteUnoffered notes a claim whose allocated device the node could offer but does not: the scheduler decided before it saw
// the policy change. The device is then offered for this claim, which is prepared at the kubelet's next attempt.
func (l *Ledger) noteUnoffered(claim *resourceapi.ResourceClaim, node *policy.Node) {
	r := l.Names.allocation(claim, node.Node)
	if r != nil && slices.ContainsFunc(r.Devices, func(d records.Device) bool {
		_, offered := node.FindShape(d.Device)
		g := node.Find(d.GPU)
		return !d.AdminAccess && !offered && g != nil && g.CanBe(d.Device)
	}) {
		l.allocated.enter(r)
	}
}

// isWithdrawn reports whether a claim has a device that is, as far as known, offered for that claim alone.
func (b *backend) isWithdrawn(r *records.Record) bool {
	if b.hardware == nil {
		return true
	}
	node := b.hardware.Node()
	return slices.ContainsFunc(r.Devices, func(d records.Device) bool {
		s, offered := node.FindShape(d.Device)
		return !d.AdminAccess && (!offered || node.Offer(s.GPU).IsWithdrawn(s))
	})
}
