// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
)

// A device that stays occupied after the last pod is a leak, though it is none while pods come and go.
func TestNamesOf(t *testing.T) {
	pool := []resourceapi.ResourceSlice{{Spec: resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{
		{Name: "gpu-1", Taints: []resourceapi.DeviceTaint{{Key: nodeslices.TaintOccupied}, {Key: "gpu.cleave.dev/unhealthy", Value: "XID79"}}},
		{Name: "gpu-0"},
	}}}}
	if diff := cmp.Diff([]string{"gpu-0", "gpu-1 " + nodeslices.TaintOccupied + "= gpu.cleave.dev/unhealthy=XID79"}, namesOf(pool)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"gpu-0", "gpu-1 gpu.cleave.dev/unhealthy=XID79"}, namesOf(pool, nodeslices.TaintOccupied)); diff != "" {
		t.Errorf("names without one taint (-want +got):\n%s", diff)
	}
}
