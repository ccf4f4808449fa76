// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A name that nobody has is said with the one that was meant.
func TestExplain_Names(t *testing.T) {
	gpu := func(expression string) *Question {
		return AboutClaim(claim("c", selecting(asks("gpu.cleave.dev", 1), expression)))
	}
	wants := func(name corev1.ResourceName) func(b *bed) *Question {
		return func(b *bed) *Question {
			pod := podOf()
			pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{name: *quantity(1)}}}}
			return AboutPod(pod, namespace(), b.Objects)
		}
	}
	tests := map[string]struct {
		question func(b *bed) *Question
		want     []string
		not      string
	}{
		"class": {func(*bed) *Question { return AboutClaim(claim("c", asks("mig-1g.10g.cleave.dev", 1))) },
			[]string{"- DeviceClass mig-1g.10g.cleave.dev does not exist: did you mean mig-1g.10gb.cleave.dev?\n"}, ""},
		"class of NVIDIA's driver": {func(*bed) *Question { return AboutClaim(claim("c", asks("gpu.nvidia.com", 1))) },
			[]string{"- DeviceClass gpu.nvidia.com does not exist\n", "docs/nvidia-compatible.md"}, "did you mean"},
		"extended resource": {wants("nvidia.com/gpus"), []string{"and no node advertises it: did you mean nvidia.com/gpu?\n"}, ""},
		"extended resource of a device plugin": {func(b *bed) *Question {
			b.Nodes[0].Status.Allocatable = corev1.ResourceList{"example.com/nic": *quantity(1), "cpu": *quantity(1)}
			return wants("example.com/nics")(b)
		}, []string{"and no node advertises it: did you mean example.com/nic?\n"}, ""},
		"attribute": {func(*bed) *Question { return gpu(`device.attributes["gpu.cleave.dev"].productname == "x"`) },
			[]string{"- the selector of request gpu reads the attribute gpu.cleave.dev/productname, which no device has: " +
				"did you mean gpu.cleave.dev/productName?\n"}, "the scheduler fails"},
		"attribute that some devices have": {func(*bed) *Question { return gpu(`device.attributes["gpu.cleave.dev"].profile == "x"`) },
			[]string{"select the type first"}, "which no device has"},
		"domain": {func(*bed) *Question { return gpu(`device.attributes["gpu.nvidia.com"].productName == "x"`) },
			[]string{"reads the attribute gpu.nvidia.com/productName, which no device has: did you mean gpu.cleave.dev/productName?\n"}, ""},
		"nothing like it": {func(*bed) *Question { return gpu(`device.attributes["gpu.cleave.dev"].colour == "x"`) },
			[]string{"which no device has\n  (kubectl get resourceslices"}, "did you mean"},
		"constraint": {func(*bed) *Question { return AboutClaim(withConstraint(whole(2), "gpu.cleave.dev/parentuuid")) },
			[]string{"- the constraint needs the attribute gpu.cleave.dev/parentuuid, which no device has: " +
				"did you mean gpu.cleave.dev/parentUUID?\n\nNode"}, "together satisfy matchAttribute gpu.cleave.dev/parentuuid\n-"},
		"capacity": {func(*bed) *Question { return AboutClaim(claim("c", asks("mps.cleave.dev", 1, "core=25"))) },
			[]string{"- request gpu asks for the capacity core, which no device has: did you mean cores?\n",
				"  - 8 devices do not have the capacity core: they have cores, memory, shares\n"}, ""},
		"capacity of a selector": {func(*bed) *Question {
			return gpu(`device.capacity["gpu.cleave.dev"].memry.isGreaterThan(quantity("1Gi"))`)
		},
			[]string{"reads the capacity gpu.cleave.dev/memry, which no device has: did you mean gpu.cleave.dev/memory?\n"}, ""},
		"capacity with its domain": {func(*bed) *Question {
			return AboutClaim(claim("c", asks("mps.cleave.dev", 1, "gpu.cleave.dev/cores=25")))
		},
			[]string{"asks for the capacity gpu.cleave.dev/cores, which no device has: did you mean cores?\n"}, ""},
		"driver of parameters": {func(*bed) *Question {
			c := whole(1)
			c.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
				Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "gpu.clave.dev", Parameters: runtime.RawExtension{Raw: []byte("{}")}}}}}
			return AboutClaim(c)
		}, []string{"fits:", "Claim team/trainer has parameters for driver gpu.clave.dev, of which no node has devices: did you mean gpu.cleave.dev?\n"}, ""},
		"driver of parameters that another class is of": {func(b *bed) *Question {
			c := whole(1)
			c.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
				Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "nic.example.com", Parameters: runtime.RawExtension{Raw: []byte("{}")}}}}}
			b.slices = append(b.slices, resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "nic"}, Spec: resourceapi.ResourceSliceSpec{
				Driver: "nic.example.com", NodeName: new("node-1"), Pool: resourceapi.ResourcePool{Name: "nics", ResourceSliceCount: 1},
				Devices: []resourceapi.Device{{Name: "nic-0"}}}})
			return AboutClaim(c)
		}, []string{"fits:", "Claim team/trainer has parameters for driver nic.example.com, and the classes of these requests are of gpu.cleave.dev: " +
			"nobody reads them.\n"}, "of which no node"},
		"has() of what is nowhere, and a full cluster": {func(b *bed) *Question {
			b.allocate("node-1", "other", asks("gpu.cleave.dev", 8))
			return gpu(`!has(device.attributes["gpu.cleave.dev"].colour)`)
		}, []string{"fits no node now"}, "colour, which"},
		"nothing is published": {func(b *bed) *Question {
			b.slices = nil
			return AboutClaim(claim("c", asks("mps.cleave.dev", 1, "core=25")))
		}, []string{"no ResourceSlices"}, "which no device has"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, "hgx-h100")
			got := text(t, b.explain(tt.question(b)))
			missing := slices.ContainsFunc(tt.want, func(want string) bool { return !strings.Contains(got, want) })
			if missing || tt.not != "" && strings.Contains(got, tt.not) {
				t.Errorf("got\n%s\nwant %q and not %q", got, tt.want, tt.not)
			}
		})
	}
}
