// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// record is the third step: it writes the intended hardware changes to disk before they are made.
func (a *preparation) record() error {
	if !a.creates {
		return nil
	}
	begun := a.toRecord().Clone()
	if a.intent = needsIntent(begun); !a.intent {
		return nil
	}
	begun.State = records.Preparing
	return a.Ledger.write(begun)
}

// needsIntent reports whether a claim's hardware changes must be recorded before they are made. Existing partitions, which
// other claims share or a layout contains, are not changed; a plain share changes nothing. Claims without a record are removed from
// MPS servers at the next start (recoverMPS), where GPUs offer MPS; but a server that serves one claim alone may be
// anywhere.
func needsIntent(r *records.Record) bool {
	return slices.ContainsFunc(r.InSpec(), func(d *records.Device) bool { return d.Partition != nil && d.Partition.UUID == "" }) ||
		slices.ContainsFunc(r.Shares(gpu.TimeSlice), func(d *records.Device) bool { return d.Share.Interval != "" }) ||
		slices.ContainsFunc(r.Shares(gpu.MPS), func(d *records.Device) bool { return d.Share.Exclusive })
}

// toRecord returns the record of the claim in its current state. It uses the Shares of the devices. Earlier pods of the claim stay on
// record: some may be running while their devices are prepared again.
func (a *preparation) toRecord() *records.Record {
	r := newRecord(a.claim, a.devices, a.id, a.Ledger.bootID, a.cdi)
	if have := a.view.have; have != nil {
		r.Pods, r.OtherConsumers = joined(have.Pods, r.Pods), r.OtherConsumers || have.OtherConsumers
	}
	for _, d := range r.Partitions() {
		d.Session = a.Ledger.sessions.of(d.GPU)
	}
	return r
}

// newRecord returns the record of a claim with these devices. A partition that does not exist yet is recorded with its
// place only, and a share without its MPS server's directories.
func newRecord(claim *resourceapi.ResourceClaim, devices []device, id Identity, bootID string, cdi CDI) *records.Record {
	r := &records.Record{
		Format:  records.Format,
		BootID:  bootID,
		Driver:  id.Driver,
		Claim:   records.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
		Devices: make([]records.Device, 0, len(devices)),
	}
	r.Pods, r.OtherConsumers = consumersOf(claim)
	r.OwnerPod = ownerPod(claim)
	for i := range devices {
		d := &devices[i]
		device := records.Device{
			Request: d.request, Pool: id.Pool, Device: d.name, AdminAccess: d.admin,
			GPU: d.gpu, UUID: d.shape.GPU.UUID, Partition: d.partition, Share: d.share, ShareID: d.shareID,
		}
		if d.shape.IsPartition() && d.partition == nil {
			wanted := d.wanted()
			device.Partition = &wanted
		}
		r.Devices = append(r.Devices, device)
	}
	own := r.WithEdits()
	for i := range devices {
		d, device := &devices[i], &r.Devices[i]
		if d.cdiIDs == nil {
			d.cdiIDs = []string{parentID(cdi, d.shape)}
			if slices.Contains(own, device) {
				d.cdiIDs = append(d.cdiIDs, cdi.ClaimID(claim.UID, device))
			}
		}
		device.CDIDeviceIDs = d.cdiIDs
	}
	return r
}

// parentID returns the CDI device by which a container gets the GPU of a shape. Only graphics profiles (+gfx) get the device nodes
// that graphics programs need.
func parentID(cdi CDI, shape gpu.Shape) string {
	device := shape.GPU.PCI.DeviceName()
	if shape.IsPartition() && !strings.Contains(shape.Profile.Name, "+gfx") {
		return cdi.PartitionsID(device)
	}
	return cdi.DeviceID(device)
}

// sameDevices reports whether two records have the same devices in the same boot.
func sameDevices(a, b *records.Record) bool {
	if a.BootID != b.BootID || a.Driver != b.Driver || a.State != b.State {
		return false
	}
	return slices.EqualFunc(a.Devices, b.Devices, func(x, y records.Device) bool {
		return x.Request == y.Request && x.Pool == y.Pool && x.Device == y.Device && x.AdminAccess == y.AdminAccess &&
			x.GPU == y.GPU && x.UUID == y.UUID && sameShare(x.Share, y.Share) && slices.Equal(x.CDIDeviceIDs, y.CDIDeviceIDs)
	})
}

// sameShare reports whether two shares are the same apart from the directories of their server.
func sameShare(a, b *records.Share) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, y := *a, *b
	if x.MPS != nil && y.MPS != nil {
		m, n := *x.MPS, *y.MPS
		m.PipeDir, m.ShmDir = n.PipeDir, n.ShmDir
		if m != n {
			return false
		}
		x.MPS, y.MPS = nil, nil
	}
	return x == y
}
