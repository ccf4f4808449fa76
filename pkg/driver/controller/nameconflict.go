// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/driver/cluster"
)

// In NVIDIA-compatible mode the driver has the name of NVIDIA's own. Two drivers of one name on a node would take over each other's
// sockets, delete each other's slices and allocate the same GPUs, so nothing is served before the other one is gone. The functions
// here return evidence of another driver of the same name on the node; nil for none.

// maxNamedClaims limits the claims that an error about a name conflict names.
const maxNamedClaims = 5

// Registration is a plugin listening in the kubelet's registration directory.
type Registration struct {
	// Socket is its path. DriverSocket is set where the socket is named after the driver.
	Socket       string
	DriverSocket bool
	// Name by which it registers; empty if nothing listens. Ours is set for Cleave's plugins.
	Name string
	Ours bool
	// Err is why it does not answer.
	Err error
}

// PluginConflict reports another plugin of a driver's name.
func PluginConflict(driver string, r Registration) error {
	switch {
	case r.Err != nil && r.DriverSocket:
		return fmt.Errorf("a plugin listens at %s, but does not answer: restart or remove its pod: %w", r.Socket, r.Err)
	case r.Err == nil && r.Name == driver && !r.Ours:
		return fmt.Errorf("another driver named %s serves the kubelet (it answers at %s): take NVIDIA's DRA driver off this node, for "+
			"instance by the node selector of its DaemonSet, or run Cleave by its own name, without --driver-name=%s", driver, r.Socket, driver)
	}
	return nil
}

// SliceConflict reports a slice under the driver's name and node that Cleave did not write.
func SliceConflict(driver, node string, slice *resourceapi.ResourceSlice) error {
	spec := &slice.Spec
	if spec.Driver != driver || spec.NodeName == nil || *spec.NodeName != node {
		return nil
	}
	name := ""
	for i := range spec.SharedCounters {
		if !cluster.IsCleaveName(spec.SharedCounters[i].Name) {
			name = "counter set " + spec.SharedCounters[i].Name
			break
		}
	}
	for i := range spec.Devices {
		if !cluster.IsCleaveName(spec.Devices[i].Name) {
			name = "device " + spec.Devices[i].Name
			break
		}
	}
	if name == "" {
		return nil
	}
	return fmt.Errorf("ResourceSlice %s of driver %s for this node has %s, which Cleave did not write: take NVIDIA's DRA driver "+
		"off this node; the kubelet removes its slices half a minute after its plugin is gone", slice.Name, driver, name)
}

// UnmanagedDevice returns a device, not Cleave's, that a claim with pods was allocated under the driver's name on this node; empty
// for none. The scheduler no longer knows it, and would allocate its GPU again.
func UnmanagedDevice(driver, node string, claim *resourceapi.ResourceClaim) string {
	if claim.Status.Allocation == nil || len(claim.Status.ReservedFor) == 0 {
		return ""
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver == driver && r.Pool == node && !cluster.IsCleaveName(r.Device) {
			return r.Device
		}
	}
	return ""
}

// ClaimConflict reports claims that have an UnmanagedDevice.
func ClaimConflict(driver string, found []string) error {
	if len(found) == 0 {
		return nil
	}
	if more := len(found) - maxNamedClaims; more > 0 {
		found = append(found[:maxNamedClaims:maxNamedClaims], fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("pods on this node have GPUs from another driver named %s, by claims %s: drain the node, or delete those pods",
		driver, strings.Join(found, ", "))
}
