// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/packing"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// request asks for one device of a class of NVIDIA-compatible mode.
func request(name, class string) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
	}}
}

// firstOf asks for a device of the first class that has one.
func firstOf(name string, classes ...string) resourceapi.DeviceRequest {
	r := resourceapi.DeviceRequest{Name: name}
	for _, class := range classes {
		r.FirstAvailable = append(r.FirstAvailable, resourceapi.DeviceSubRequest{
			Name: class[:3], DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		})
	}
	return r
}

// entry is a claim's opaque configuration of NVIDIA's.
func entry(kind, sharing string, requests ...string) resourceapi.DeviceClaimConfiguration {
	c := opaque(compatibleID.Driver, "", nvidiaConfig(kind, sharing), requests...)
	return resourceapi.DeviceClaimConfiguration{Requests: c.Requests, DeviceConfiguration: c.DeviceConfiguration}
}

// allocated has the scheduler's own allocator allocate a claim on a node in NVIDIA-compatible mode. It rewrites what a claim
// says of requests, so an allocation that a test makes up is not the one that Prepare gets.
func allocated(t *testing.T, node *policy.Node, spec resourceapi.DeviceClaim, classConfig ...resourceapi.DeviceClassConfiguration) *resourceapi.ResourceClaim {
	t.Helper()
	classes, err := packing.Classes("../../../deployments/nvidia-compatible")
	must(t, err)
	for _, c := range classes {
		c.Spec.Config = classConfig
	}
	n, err := packing.NewNode(packing.Compatible(node), classes)
	must(t, err)
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim-u", UID: "u"}, Spec: resourceapi.ResourceClaimSpec{Devices: spec}}
	results, err := n.Allocate(t.Context(), claim)
	must(t, err)
	claim.Status.Allocation = &results[0]
	return claim
}

func TestPlan_ParametersAsTheSchedulerPassesThem(t *testing.T) {
	const gpuClass, migClass = "gpu.nvidia.com", "mig.nvidia.com"
	node := migNode(t)
	short := &records.Share{ID: "claim", Kind: gpu.TimeSlice, Exclusive: true, Interval: "Short"}
	type entries []resourceapi.DeviceClaimConfiguration
	type requests []resourceapi.DeviceRequest
	tests := map[string]struct {
		requests requests
		entries  entries
		class    []resourceapi.DeviceClassConfiguration
		want     []*records.Share
		refused  []string
	}{
		"GPU, for its only request":       {requests{request("r", gpuClass)}, entries{entry("GpuConfig", slicingShort, "r")}, nil, []*records.Share{short}, nil},
		"GPU, for all":                    {requests{request("r", gpuClass)}, entries{entry("GpuConfig", slicingShort)}, nil, []*records.Share{short}, nil},
		"partition, for its only request": {requests{request("r", migClass)}, entries{entry("GpuConfig", plainMPS, "r")}, nil, nil, list(`request "r"`, "is a GpuConfig", "of type mig", "use a MigDeviceConfig")},
		"partition, for all":              {requests{request("r", migClass)}, entries{entry("GpuConfig", plainMPS)}, nil, nil, list(`request "r"`, "is a GpuConfig", "use a MigDeviceConfig")},
		"GPU, of partitions":              {requests{request("r", gpuClass)}, entries{entry("MigDeviceConfig", slicing, "r")}, nil, nil, list("is a MigDeviceConfig", "use a GpuConfig")},
		"GPU, one entry too many":         {requests{request("r", gpuClass)}, entries{entry("GpuConfig", slicingShort), entry("MigDeviceConfig", slicing)}, nil, nil, list("opaque configuration 1", "is a MigDeviceConfig")},
		"both kinds, both entries": {
			requests{request("a", gpuClass), request("b", migClass)}, entries{entry("GpuConfig", slicingShort), entry("MigDeviceConfig", slicing)}, nil, []*records.Share{short, nil}, nil,
		},
		"both kinds, one entry named for both": {
			requests{request("a", gpuClass), request("b", migClass)}, entries{entry("GpuConfig", slicingShort, "a", "b")}, nil, []*records.Share{short, nil}, nil,
		},
		"from the class, of another kind": {
			requests{request("r", migClass)}, nil, []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: entry("GpuConfig", plainMPS).DeviceConfiguration}}, nil,
			list("from the DeviceClass", "use a MigDeviceConfig"),
		},
		"an alternative that was not chosen": {
			requests{firstOf("r", migClass, gpuClass)}, entries{entry("GpuConfig", plainMPS), entry("MigDeviceConfig", slicing)}, nil, []*records.Share{nil}, nil,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			claim := allocated(t, node, resourceapi.DeviceClaim{Requests: tt.requests, Config: tt.entries}, tt.class...)
			id := Identity{Driver: compatibleID.Driver, Pool: claim.Status.Allocation.Devices.Results[0].Pool}
			got, err := plan(claim, node, id)
			if tt.refused != nil {
				wantError(t, err, tt.refused...)
				return
			}
			if err != nil {
				t.Fatalf("plan: %v", err)
			}
			equal(t, "shares", tt.want, sharesOf(got))
		})
	}
}
