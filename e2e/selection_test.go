// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
)

func TestSelection_Expression(t *testing.T) {
	ctx, s := newSpace(t, nil)
	published := s.published.waitOrder(ctx, lastFirst)
	first := published[len(published)-1] // the scheduler's last choice
	root := *first.Attributes[deviceattribute.StandardDeviceAttributePCIeRoot].StringValue
	tests := []struct {
		name, expression string
		fits             func(resourceapi.Device) bool
	}{
		{"product", `device.attributes["gpu.cleave.dev"].productName == "NVIDIA H100 80GB HBM3"`, func(d resourceapi.Device) bool {
			return *d.Attributes["productName"].StringValue == "NVIDIA H100 80GB HBM3"
		}},
		{"memory", `device.capacity["gpu.cleave.dev"].memory.compareTo(quantity("79Gi")) >= 0`, func(d resourceapi.Device) bool {
			memory := d.Capacity["memory"].Value
			return memory.Cmp(resource.MustParse("79Gi")) >= 0
		}},
		{"driver", `device.attributes["gpu.cleave.dev"].driverVersion.isGreaterThan(semver("580.0.0"))`, func(d resourceapi.Device) bool {
			return strings.HasPrefix(*d.Attributes["driverVersion"].VersionValue, "580.")
		}},
		{"numa", `device.attributes["resource.kubernetes.io"].numaNode == 0`, func(d resourceapi.Device) bool {
			return *d.Attributes[deviceattribute.StandardDeviceAttributeNUMANode].IntValue == 0
		}},
		{"root", fmt.Sprintf(`device.attributes["resource.kubernetes.io"].pcieRoot == %q`, root), func(d resourceapi.Device) bool {
			return d.Name == first.Name
		}},
	}
	for _, test := range tests {
		s.create(ctx, gpuPod(test.name, 1, test.expression)...)
	}
	for _, test := range tests {
		pod := s.pods.running(ctx, test.name)
		devices := s.pods.devices(ctx, pod)
		if len(devices) != 1 || !test.fits(*find(published, devices[0])) {
			t.Errorf("pod %s got %v, which %s does not fit", test.name, devices, test.expression)
		}
		s.pods.checkSees(ctx, pod, devices)
	}
}

func TestSelection_NoGPUFits(t *testing.T) {
	ctx, s := newSpace(t, nil)
	oneRoot := claimOf(2) // every GPU of the model has a root complex of its own
	oneRoot.Devices.Constraints = sameAttribute(deviceattribute.StandardDeviceAttributePCIeRoot)
	claims := map[string]resourceapi.ResourceClaimSpec{
		"other-product":    claimOf(1, `device.attributes["gpu.cleave.dev"].productName == "NVIDIA B200"`),
		"too-much-memory":  claimOf(1, `device.capacity["gpu.cleave.dev"].memory.compareTo(quantity("100Gi")) >= 0`),
		"newer-driver":     claimOf(1, `device.attributes["gpu.cleave.dev"].driverVersion.isGreaterThan(semver("999.0.0"))`),
		"two-on-one-root":  oneRoot,
		"more-than-exist":  claimOf(gpus + 1),
		"without-numanode": claimOf(1, `!("numaNode" in device.attributes["resource.kubernetes.io"])`),
	}
	for name, claim := range claims {
		s.create(ctx, claimPod(name, claim)...)
	}
	for name := range claims {
		if message := s.pods.unschedulable(ctx, name); !strings.Contains(message, "0/1 nodes are available: 1 cannot allocate all claims") {
			t.Errorf("the scheduler says of pod %s %q, want that its one node cannot allocate all claims", name, message)
		}
	}
	s.plugin.waitRecords(ctx, env.node)
}

func sameAttribute(name resourceapi.QualifiedName) []resourceapi.DeviceConstraint {
	full := resourceapi.FullyQualifiedName(name)
	return []resourceapi.DeviceConstraint{{Requests: []string{"gpu"}, MatchAttribute: &full}}
}

func TestSelection_NUMANode(t *testing.T) {
	ctx, s := newSpace(t, nil)
	s.published.waitOrder(ctx, lastFirst)
	// One GPU of the second NUMA node, which is filled first, is taken: four together are left on the first one only.
	s.pods.run(ctx, gpuPod("one", 1))
	together := claimOf(4)
	together.Devices.Constraints = sameAttribute(deviceattribute.StandardDeviceAttributeNUMANode)
	pod := s.pods.run(ctx, claimPod("together", together))
	devices := s.pods.devices(ctx, pod)
	published := s.published.gpus(ctx)
	for _, name := range devices {
		if numa := *find(published, name).Attributes[deviceattribute.StandardDeviceAttributeNUMANode].IntValue; numa != 0 {
			t.Errorf("device %s is on NUMA node %d, want all four on 0", name, numa)
		}
	}
	s.pods.checkSees(ctx, pod, devices)
}
