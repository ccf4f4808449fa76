// SPDX-License-Identifier: Apache-2.0

package allocator_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/deployments/manifests"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
)

func nodeOf(t *testing.T, model string) *allocator.Node {
	t.Helper()
	inventory, err := models.Load(model)
	if err != nil {
		t.Fatal(err)
	}
	classes, err := manifests.Classes()
	if err != nil {
		t.Fatal(err)
	}
	var published []*resourceapi.ResourceSlice
	list := nodeslices.Objects(policy.Apply(&v1alpha1.NodePolicy{}, inventory, policy.Capabilities{}), v1alpha1.Group, "node-1")
	for i := range list.Items {
		published = append(published, &list.Items[i])
	}
	n, err := allocator.NewNode(published, classes)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAllocate_UntilFull(t *testing.T) {
	for _, class := range []string{"gpu.cleave.dev", "mig-7g.80gb.cleave.dev", "timeslice.cleave.dev"} {
		n := nodeOf(t, "hgx-h100")
		var all []resourceapi.AllocationResult
		for {
			result, err := n.AllocateFromClass(t.Context(), fmt.Sprint("claim-", len(all)), class, 1)
			if errors.Is(err, allocator.ErrNoFit) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, result)
		}
		if want := map[bool]int{true: 32, false: 8}[class == "timeslice.cleave.dev"]; len(all) != want {
			t.Errorf("%s: %d fit, want %d", class, len(all), want)
		}
		device := all[0].Devices.Results[0]
		if !n.Allocated(device.Driver, device.Pool, device.Device) || n.Device(device.Device) == nil {
			t.Errorf("%s: %s is not allocated, or not published", class, device.Device)
		}
		if _, err := n.Allocate(t.Context(), allocator.NewClaim("small", "mig-1g.10gb.cleave.dev", 1)); !errors.Is(err, allocator.ErrNoFit) {
			t.Errorf("%s everywhere: a partition got %v", class, err)
		}
		n.Release(all...)
		if _, err := n.Allocate(t.Context(), allocator.NewClaim("all", "gpu.cleave.dev", 8)); err != nil {
			t.Errorf("%s, all released: %v", class, err)
		}
	}
}

func TestAllocate_UnknownClass(t *testing.T) {
	if _, err := nodeOf(t, "t4").AllocateFromClass(t.Context(), "claim", "absent", 1); err == nil || !strings.Contains(err.Error(), `no DeviceClass "absent"`) {
		t.Errorf("got %v", err)
	}
}

func TestNewNode_NoSlices(t *testing.T) {
	if _, err := allocator.NewNode(nil, nil); err == nil {
		t.Error("a node without slices is no error")
	}
}

// Requests of one claim get different GPUs where a constraint says so (docs/scheduler.md); without it, first fit puts them on one.
func TestAllocate_DistinctGPUs(t *testing.T) {
	for class, attribute := range map[string]string{"mig-1g.10gb.cleave.dev": "gpu.cleave.dev/parentUUID", "timeslice.cleave.dev": "gpu.cleave.dev/uuid"} {
		for distinct, want := range map[bool]int{false: 1, true: 3} {
			claim := allocator.NewClaim("replicas", class, 1)
			first := claim.Spec.Devices.Requests[0]
			for _, name := range []string{"b", "c"} {
				more := *first.DeepCopy()
				more.Name = name
				claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, more)
			}
			if distinct {
				claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{DistinctAttribute: new(resourceapi.FullyQualifiedName(attribute))}}
			}
			results, err := nodeOf(t, "hgx-h100").Allocate(t.Context(), claim)
			if err != nil {
				t.Fatalf("%s: %v", class, err)
			}
			gpus := map[string]bool{}
			for _, r := range results[0].Devices.Results {
				device, _, _ := strings.Cut(r.Device, "-mig-")
				gpus[device] = true
			}
			if len(gpus) != want {
				t.Errorf("%s, distinct %t: %d GPUs, want %d: %+v", class, distinct, len(gpus), want, results[0].Devices.Results)
			}
		}
	}
}

// TestAllocateFromClass_Published: devices that are published later are found, and a class may select by whether devices are shared.
func TestAllocateFromClass_Published(t *testing.T) {
	shared := &resourceapi.DeviceClass{}
	shared.Name = "shared"
	shared.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.allowMultipleAllocations"}}}
	name := "node-1"
	publish := func(devices ...resourceapi.Device) []*resourceapi.ResourceSlice {
		s := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
			Driver: "gpu.example.com", NodeName: &name, Pool: resourceapi.ResourcePool{Name: name, ResourceSliceCount: 1}, Devices: devices,
		}}
		s.Name = "slice"
		return []*resourceapi.ResourceSlice{s}
	}
	n, err := allocator.NewNode(publish(resourceapi.Device{Name: "a"}), allocator.Classes{shared})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.AllocateFromClass(t.Context(), "first", "shared", 1); !errors.Is(err, allocator.ErrNoFit) {
		t.Errorf("no device is shared: %v", err)
	}
	n.Publish(publish(resourceapi.Device{Name: "a"}, resourceapi.Device{Name: "b", AllowMultipleAllocations: new(true)}))
	got, err := n.AllocateFromClass(t.Context(), "second", "shared", 1)
	if err != nil || got.Devices.Results[0].Device != "b" {
		t.Errorf("one is: %v, %v", got, err)
	}
}
