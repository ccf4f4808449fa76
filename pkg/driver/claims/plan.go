// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// Identity distinguishes this driver's part of an allocation from those of other drivers.
type Identity struct {
	// Driver name, such as gpu.cleave.dev.
	Driver string
	// Pool of this node's devices, which has the node's name.
	Pool string
}

// device is a device of a claim during Prepare, which fills it in step by step. It is stored as
// a records.Device.
type device struct {
	request string
	admin   bool
	shape   gpu.Shape
	offer   *policy.Offer  // of the shape's GPU
	share   *records.Share // of a shared GPU, unless admin
	shareID string         // of the allocation, if admin
	config  *config        // opaque parameters for the device; nil if there are none
	// name is the device name of the shape, gpu that of its GPU.
	name, gpu string
	// cdiIDs are the CDI devices that containers get; nil until they are needed.
	cdiIDs []string
	// partition of the device, once it exists; nil for a whole GPU.
	partition *gpu.Partition
}

func (d *device) extent() extent {
	e := extent{gpu: d.gpu, share: d.shape.Share}
	if d.shape.IsPartition() {
		at := d.shape.Place()
		e.place = &at
	}
	return e
}

func (d *device) wanted() gpu.Partition {
	return gpu.Partition{ProfileID: d.shape.Profile.ID, Placement: d.shape.Placement}
}

// plan translates a claim's allocation to devices. It is pure: allocation and inventory in, devices or an error that names the
// request out. Devices of other drivers are skipped.
func plan(claim *resourceapi.ResourceClaim, node *policy.Node, id Identity) ([]device, error) {
	if claim.Status.Allocation == nil {
		return nil, errors.New("the claim is not allocated")
	}
	allocation := &claim.Status.Allocation.Devices
	if !slices.ContainsFunc(allocation.Results, func(r resourceapi.DeviceRequestAllocationResult) bool { return r.Driver == id.Driver }) {
		return nil, nil // configurations of this driver without devices do not matter
	}
	configs, err := decodeConfigs(allocation.Config, id.Driver)
	if err != nil {
		return nil, err
	}
	var devices []device
	for _, result := range allocation.Results {
		if result.Driver != id.Driver {
			continue
		}
		if result.Pool != id.Pool {
			return nil, fmt.Errorf("request %q: device %s is of pool %q, this node's pool is %q",
				result.Request, result.Device, result.Pool, id.Pool)
		}
		admin := result.AdminAccess != nil && *result.AdminAccess
		shape, ok := shapeOf(result.Device, admin, node)
		if !ok {
			return nil, fmt.Errorf("request %q: device %q is not on this node, which has %s: if the GPU was removed, fell off the bus or "+
				"changed its MIG mode, or the node's policy no longer offers the device, delete the pod so that it is scheduled again",
				result.Request, result.Device, deviceNames(node))
		}
		d := device{
			request: result.Request, admin: admin,
			shape: shape, offer: node.Offer(shape.GPU), name: shape.Name(), gpu: shape.GPU.PCI.DeviceName(),
		}
		d.config = configs.of(d)
		if d.share, err = share(d, result); err != nil {
			return nil, fmt.Errorf("request %q: %w", result.Request, err)
		}
		if admin && result.ShareID != nil {
			d.shareID = string(*result.ShareID)
		}
		devices = append(devices, d)
	}
	if err := configs.checkKinds(devices, hasAlternatives(claim)); err != nil {
		return nil, err
	}
	return devices, checkServers(devices)
}

// shapeOf returns the shape of a device. Allocated devices are offered, whatever the policy, except to admin access: the devices
// that it observes exist without an offer.
func shapeOf(device string, admin bool, node *policy.Node) (gpu.Shape, bool) {
	shape, offered := node.FindShape(device)
	if offered || !admin {
		return shape, offered
	}
	g := node.Find(deviceNamed(device, node.Node).GPU)
	if g == nil {
		return gpu.Shape{}, false
	}
	return g.ShapeNamed(device)
}

// hasAlternatives reports whether the scheduler chose between subrequests: parameters for one that it did not choose
// legitimately apply to no device.
func hasAlternatives(claim *resourceapi.ResourceClaim) bool {
	return slices.ContainsFunc(claim.Spec.Devices.Requests, func(r resourceapi.DeviceRequest) bool { return len(r.FirstAvailable) > 0 })
}

// deviceNames lists a node's devices for messages.
func deviceNames(node *policy.Node) string {
	names := make([]string, 0, len(node.GPUs))
	for i := range node.GPUs {
		names = append(names, node.GPUs[i].PCI.DeviceName())
	}
	if len(names) == 0 {
		return "no GPUs"
	}
	return strings.Join(names, ", ")
}

// gpuNames returns the names of the devices' GPUs, sorted and without duplicates.
func gpuNames(devices []device) []string {
	names := make([]string, 0, len(devices))
	for _, d := range devices {
		names = append(names, d.gpu)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
