// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/records"
)

// locate finds the GPU of a device on record. It returns nil if that GPU is gone, and all that was on it: the machine has
// none at its address any more, or another one. A GPU that is there, or may be, and cannot be read is gpu.ErrUnreadable:
// what was on it may still be, and stays on record.
func locate(b *backend, d *records.Device) (*gpu.GPU, error) {
	g := b.hardware.Node().Find(d.GPU)
	switch {
	case g != nil && g.UUID == d.UUID:
		return g, nil
	case g != nil || absent(b, d.GPU):
		return nil, nil //nolint:nilnil // a GPU that is gone is an ordinary answer
	default:
		return nil, fmt.Errorf("GPU %s (%s): %w", d.GPU, d.UUID, gpu.ErrUnreadable)
	}
}

// absent reports whether it is certain that the GPU of a device is gone.
func absent(b *backend, device string) bool {
	pci, err := gpu.ParseDeviceName(device)
	return err == nil && b.hardware.Absent(pci)
}

// explainMissing adds to an error that a claim cannot be planned whether the GPU of one of its devices is there and cannot
// be read: then another pod on this node would not help, and waiting may.
func explainMissing(err error, claim *resourceapi.ResourceClaim, b *backend, id Identity) error {
	if claim.Status.Allocation == nil {
		return err
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		pci, nameErr := gpu.ParseDeviceName(r.Device)
		if r.Driver != id.Driver || r.Pool != id.Pool || nameErr != nil || b.hardware.Node().Find(pci.DeviceName()) != nil || b.hardware.Absent(pci) {
			continue
		}
		return fmt.Errorf("request %q: device %s: the GPU at %s: %w: what claims have on it stays on record, and it is tried again", r.Request, r.Device, pci, gpu.ErrUnreadable)
	}
	return err
}
