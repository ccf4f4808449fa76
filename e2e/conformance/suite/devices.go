// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/cleave-dra/cleave/e2e/conformance/driver"
)

// resultsOf are the devices of a claim that are the driver's.
func (b *bench) resultsOf(claim *resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	return slices.DeleteFunc(slices.Clone(claim.Status.Allocation.Devices.Results), func(r resourceapi.DeviceRequestAllocationResult) bool {
		return r.Driver != b.Driver
	})
}

// checkDevices compares what was prepared with what was allocated. A device that needs nothing in the container may be
// missing: "These are the additional devices that kubelet must make available" (dra/v1/api.proto).
func (b *bench) checkDevices(claim *resourceapi.ResourceClaim, devices []*drapb.Device) error {
	results := b.resultsOf(claim)
	for i, d := range devices {
		at := slices.IndexFunc(results, func(r resourceapi.DeviceRequestAllocationResult) bool { return isOf(d, r) })
		if at < 0 {
			return fmt.Errorf("claim %s got %s, which is not allocated to it", claim.Name, describe(d))
		}
		for _, name := range d.RequestNames {
			if !slices.ContainsFunc(results, func(r resourceapi.DeviceRequestAllocationResult) bool {
				base, _, _ := strings.Cut(r.Request, "/")
				return base == name && isOf(d, r)
			}) {
				return fmt.Errorf("claim %s got %s for request %q, want %q: containers name main requests", claim.Name, describe(d), name,
					results[at].Request)
			}
		}
		if slices.ContainsFunc(devices[:i], func(e *drapb.Device) bool { return describe(d) == describe(e) }) {
			return fmt.Errorf("claim %s got %s twice", claim.Name, describe(d))
		}
	}
	return nil
}

// isOf reports whether a prepared device is that of an allocation. The share is optional in the answer.
func isOf(d *drapb.Device, r resourceapi.DeviceRequestAllocationResult) bool {
	if d.PoolName != r.Pool || d.DeviceName != r.Device {
		return false
	}
	return d.ShareId == nil || r.ShareID != nil && *d.ShareId == string(*r.ShareID)
}

// describe has all of a prepared device, in one order.
func describe(d *drapb.Device) string {
	share := ""
	if d.ShareId != nil {
		share = " share " + *d.ShareId
	}
	return fmt.Sprintf("%s/%s%s for %q by %q", d.PoolName, d.DeviceName, share, slices.Sorted(slices.Values(d.RequestNames)),
		slices.Sorted(slices.Values(d.CdiDeviceIds)))
}

// sameDevices compares two answers for one claim, in any order.
func sameDevices(first, second []*drapb.Device) error {
	a, b := describeAll(first), describeAll(second)
	if !slices.Equal(a, b) {
		return fmt.Errorf("the devices were %s and are %s", a, b)
	}
	return nil
}

func describeAll(devices []*drapb.Device) []string {
	var all []string
	for _, d := range devices {
		all = append(all, describe(d))
	}
	slices.Sort(all)
	return all
}

// cdiIDs are the CDI devices of prepared devices.
func cdiIDs(devices []*drapb.Device) []string {
	var all []string
	for _, d := range devices {
		all = append(all, d.CdiDeviceIds...)
	}
	return all
}

// resolve checks that CDI specs have all devices; without directories of specs it checks nothing.
func (b *bench) resolve(devices []*drapb.Device) error {
	if len(b.CDIDirs) == 0 {
		return nil
	}
	_, err := b.driver.Edits(cdiIDs(devices))
	if errors.Is(err, driver.ErrUnresolved) {
		return fmt.Errorf("%w: a container that asks for it does not start", err)
	}
	return err
}
