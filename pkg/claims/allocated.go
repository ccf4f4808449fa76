// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"regexp"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/records"
)

// SetAllocated says which claims have been allocated devices of this node under the driver name, prepared or not: for other
// names, those devices are taken. Claims without such a device are passed over.
func (l *Ledger) SetAllocated(node *gpu.Node, claims []*resourceapi.ResourceClaim) (changed bool) {
	before := map[string]*records.Record{}
	for _, r := range l.allocated.claims() {
		before[string(r.Claim.UID)] = r
	}
	for _, c := range claims {
		r := allocation(c, node, l.id)
		if r == nil {
			continue
		}
		was := before[string(r.Claim.UID)]
		delete(before, string(r.Claim.UID))
		if was == nil || !sameDevices(was, r) {
			l.allocated.set(r)
			changed = true
		}
	}
	for _, r := range before {
		l.allocated.removeIf(r)
		changed = true
	}
	return changed
}

// Allocated reports whether a claim has been allocated a device of this node under the driver name.
func (l *Ledger) Allocated(claim *resourceapi.ResourceClaim) bool {
	return allocation(claim, nil, l.id) != nil
}

// allocation is what a claim was allocated of a node under a driver's name, as a record of it would say; nil if nothing. It
// is pure. What it cannot place, because the node is not known or has no such device, counts as the whole of its GPU.
func allocation(claim *resourceapi.ResourceClaim, node *gpu.Node, id Identity) *records.Record {
	if claim.Status.Allocation == nil {
		return nil
	}
	r := &records.Record{
		Format: records.Format,
		Claim:  records.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
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

// gpuOfDevice takes the name of the whole GPU's device out of that of any of its devices (gpu.Shape.Name).
var gpuOfDevice = regexp.MustCompile(`^(gpu-[0-9a-f]{4,8}-[0-9a-f]{2}-[0-9a-f]{2}-[0-7])(?:-(.+))?$`)

// deviceNamed is what a device's name says of it.
func deviceNamed(name string, node *gpu.Node) records.Device {
	d := records.Device{Device: name, GPU: name}
	match := gpuOfDevice.FindStringSubmatch(name)
	if match == nil {
		return d
	}
	d.GPU = match[1]
	of := match[2]
	for _, kind := range gpu.Shares() {
		if rest, ok := strings.CutSuffix("-"+of, "-"+string(kind)); ok {
			of, d.Share = strings.TrimPrefix(rest, "-"), &records.Share{Kind: kind}
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
	if place, ok := strings.CutPrefix(of, "mig-"); ok && g != nil {
		d.Partition = partitionNamed(g, place)
	}
	if d.Partition == nil {
		d.Share = nil // it counts as the whole GPU
	}
	return d
}

// partitionNamed is the partition that "<profile ID>-<start>" names on a GPU; nil if there is none.
func partitionNamed(g *gpu.GPU, place string) *gpu.Partition {
	id, start, ok := strings.Cut(place, "-")
	profileID, err1 := strconv.Atoi(id)
	at, err2 := strconv.Atoi(start)
	if !ok || err1 != nil || err2 != nil {
		return nil
	}
	for i := range g.MIG.Profiles {
		p := &g.MIG.Profiles[i]
		for _, placement := range p.Placements {
			if p.ID == profileID && placement.Start == at {
				return &gpu.Partition{ProfileID: p.ID, Placement: placement}
			}
		}
	}
	return nil
}

// AllocatedRecords are what SetAllocated said, in order of claim UID.
func (l *Ledger) AllocatedRecords() []*records.Record { return l.allocated.claims() }
