// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/packing"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// request asks for one device of a class of NVIDIA-compatible mode.
func request(name, class string) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
	}}
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
			requests{{Name: "r", FirstAvailable: []resourceapi.DeviceSubRequest{
				{Name: "mig", DeviceClassName: migClass, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
				{Name: "gpu", DeviceClassName: gpuClass, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
			}}}, entries{entry("GpuConfig", plainMPS), entry("MigDeviceConfig", slicing)}, nil, []*records.Share{nil}, nil,
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

func TestDeviceNamed(t *testing.T) {
	session, err := simulated.OpenNode(t.Context(), newSimNode(t, "hgx-h100"))
	must(t, err)
	node := session.Node()
	// Whatever a node can publish is found again by its name.
	for i := range node.GPUs {
		for _, s := range node.GPUs[i].Shapes() {
			d := deviceNamed(s.Name(), node)
			if d.GPU != s.GPU.PCI.DeviceName() || s.IsPartition() != (d.Partition != nil) || s.IsPartition() && d.Partition.Place() != s.Place() {
				t.Errorf("device %s is %+v", s.Name(), d)
			}
		}
	}
	name := node.GPUs[0].PCI.DeviceName()
	for device, gpuDevice := range map[string]string{
		name + "-mps": name, name + "-timeslice": name, name + "-mig-99-0": name, name + "-mig-19": name, name + "-mig-x-y": name,
		name + "-other": name, "gpu-0": "gpu-0", "": "", "gpu-0000-ff-00-0-mig-19-0": "gpu-0000-ff-00-0",
	} {
		d := deviceNamed(device, node)
		if d.GPU != gpuDevice || d.Partition != nil || (d.Share != nil) != (strings.HasSuffix(device, "-mps") || strings.HasSuffix(device, "-timeslice")) {
			t.Errorf("device %q is %+v, want of GPU %q", device, d, gpuDevice)
		}
	}
}

// An allocation names devices, also such as this node never had.
func FuzzDeviceNamed(f *testing.F) {
	session, err := simulated.Open(f.Context(), "hgx-h100")
	must(f, err)
	node := session.Node()
	if err := session.Close(); err != nil {
		f.Fatal(err)
	}
	whole := node.GPUs[0].Whole().Name()
	for _, name := range []string{"", whole, whole + "-mps", whole + "-mig-19-6", whole + "-mig-19-6-timeslice", whole + "-mig-19--6", whole + "-mig-9999999999999999999-0", "gpu-../x"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		for _, node := range []*gpu.Node{node, nil} {
			d := deviceNamed(name, node)
			if d.Device != name || !strings.HasPrefix(name, d.GPU) {
				t.Errorf("%q is taken for %q of GPU %q", name, d.Device, d.GPU)
			}
			if d.Partition != nil && (node == nil || node.Find(d.GPU) == nil) {
				t.Errorf("%q is taken for a partition of a GPU that is not there", name)
			}
		}
	})
}
