// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/records"
)

// Identity is what tells our part of an allocation from that of others.
type Identity struct {
	// Driver name, such as gpu.cleave.dev.
	Driver string
	// Pool of this node's devices: the node's name.
	Pool string
}

// planned is one device to hand to a claim.
type planned struct {
	request string
	admin   bool
	shape   gpu.Shape
	offer   *policy.Offer  // of the shape's GPU
	share   *records.Share // of a shared GPU, unless admin
	config  *config        // opaque parameters for the device; nil if there are none
}

// plan works out what a claim is to get. It is pure: allocation and inventory in, devices or an error that names the
// request out. Devices of other drivers are not ours to serve and are passed over.
func plan(claim *resourceapi.ResourceClaim, node *policy.Node, id Identity) ([]planned, error) {
	if claim.Status.Allocation == nil {
		return nil, errors.New("the claim is not allocated")
	}
	allocation := &claim.Status.Allocation.Devices
	if !slices.ContainsFunc(allocation.Results, func(r resourceapi.DeviceRequestAllocationResult) bool { return r.Driver == id.Driver }) {
		return nil, nil // configuration of ours that no device of ours has is nobody's trouble
	}
	configs, err := decodeConfigs(allocation.Config, id.Driver)
	if err != nil {
		return nil, err
	}
	var devices []planned
	for _, result := range allocation.Results {
		if result.Driver != id.Driver {
			continue
		}
		if result.Pool != id.Pool {
			return nil, fmt.Errorf("request %q: device %s is of pool %q, this node's pool is %q", result.Request, result.Device, result.Pool, id.Pool)
		}
		shape, ok := node.FindShape(result.Device)
		if !ok {
			return nil, fmt.Errorf("request %q: device %q is not on this node, which has %s: if the GPU was taken out, fell off the bus or "+
				"changed its MIG mode, or the node's policy has the device no more, delete the pod so that it is scheduled again", result.Request, result.Device, deviceNames(node))
		}
		d := planned{request: result.Request, admin: result.AdminAccess != nil && *result.AdminAccess, shape: shape, offer: node.Offer(shape.GPU)}
		d.config = configs.of(d)
		if d.share, err = share(d, result); err != nil {
			return nil, fmt.Errorf("request %q: %w", result.Request, err)
		}
		devices = append(devices, d)
	}
	if err := configs.checkKinds(devices, hasAlternatives(claim)); err != nil {
		return nil, err
	}
	return devices, checkServers(devices)
}

// hasAlternatives reports whether the scheduler chose between subrequests: parameters for one that it did not choose then
// fit no device, rightly.
func hasAlternatives(claim *resourceapi.ResourceClaim) bool {
	return slices.ContainsFunc(claim.Spec.Devices.Requests, func(r resourceapi.DeviceRequest) bool { return len(r.FirstAvailable) > 0 })
}

// checkServers refuses a request for MPS shares of several GPUs: a container knows one server only, CUDA's by
// CUDA_MPS_PIPE_DIRECTORY. Several requests may each have one, for containers of their own.
func checkServers(devices []planned) error {
	first, alone := map[string]planned{}, map[int]planned{}
	for _, d := range devices {
		if d.share == nil || d.share.Kind != gpu.MPS {
			continue
		}
		if other, ok := first[d.request]; ok && other.shape.GPU != d.shape.GPU {
			if d.share.Exclusive {
				return fmt.Errorf("request %q: %s asks for MPS on two GPUs, %s and %s: an MPS server serves one GPU, and a container can use one server. "+
					"Ask for each GPU in a request of its own, with an opaque configuration and a container of its own", d.request, d.config.describe(), other.shape.Name(), d.shape.Name())
			}
			return fmt.Errorf("request %q: it has MPS shares of two GPUs, %s and %s, and a container can use those of one only: ask for them in two requests, "+
				"for a container each, or for whole GPUs", d.request, other.shape.Name(), d.shape.Name())
		}
		first[d.request] = d
		if !d.share.Exclusive {
			continue
		}
		if other, ok := alone[d.config.position]; ok {
			return fmt.Errorf("request %q: %s asks for one MPS server for two GPUs, %s of request %q and %s, and a server has one: give each request an opaque configuration of its own, "+
				"and each a container of its own", d.request, d.config.describe(), other.shape.Name(), other.request, d.shape.Name())
		}
		alone[d.config.position] = d
	}
	return nil
}

// describeSource says where an author finds the configuration.
func describeSource(c resourceapi.DeviceAllocationConfiguration) string {
	where := "from the claim"
	if c.Source == resourceapi.AllocationConfigSourceClass {
		where = "from the DeviceClass"
	}
	if len(c.Requests) > 0 {
		where += ", requests " + strings.Join(c.Requests, ", ")
	}
	return where
}

// deviceNames lists a node's devices for people.
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

// gpuNames are the names of the GPUs that devices are made of, sorted, once each.
func gpuNames(devices []planned) []string {
	names := make([]string, 0, len(devices))
	for _, d := range devices {
		names = append(names, d.shape.GPU.PCI.DeviceName())
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// parentID is the CDI device by which a container gets the GPU of a shape. Only graphics profiles (+gfx) have the nodes by
// which graphics programs use the GPU.
func parentID(cdi CDI, shape gpu.Shape) string {
	device := shape.GPU.PCI.DeviceName()
	if shape.IsPartition() && !strings.Contains(shape.Profile.Name, "+gfx") {
		return cdi.PartitionsID(device)
	}
	return cdi.DeviceID(device)
}

// newRecord is what goes to disk for a claim with these devices. Its partitions tell only where they are to be, its
// shares nothing of the server that is to be there.
func newRecord(claim *resourceapi.ResourceClaim, devices []planned, id Identity, bootID string, cdi CDI) *records.Record {
	r := &records.Record{
		Format: records.Format,
		BootID: bootID,
		Claim:  records.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
		Pods:   podsOf(claim),
	}
	for _, d := range devices {
		device := records.Device{
			Request: d.request, Pool: id.Pool, Device: d.shape.Name(), AdminAccess: d.admin,
			GPU: d.shape.GPU.PCI.DeviceName(), UUID: d.shape.GPU.UUID,
		}
		if d.shape.IsPartition() {
			device.Partition = &gpu.Partition{ProfileID: d.shape.Profile.ID, Placement: d.shape.Placement}
		}
		device.Share = d.share
		device.CDIDeviceIDs = []string{parentID(cdi, d.shape)}
		if device.HasEdits() {
			device.CDIDeviceIDs = append(device.CDIDeviceIDs, cdi.ClaimID(claim.UID, &device))
		}
		r.Devices = append(r.Devices, device)
	}
	return r
}
