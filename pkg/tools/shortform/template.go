// SPDX-License-Identifier: Apache-2.0

package shortform

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// The drivers of other devices: github.com/kubernetes-sigs/dra-driver-cpu and sigs.k8s.io/dranet.
const (
	// CPUClass is the DeviceClass of dra-driver-cpu's chart.
	CPUClass = "dra.cpu"
	// NICClass is the DeviceClass of dranet's examples.
	NICClass = "dranet.net"
	// cpuCapacity is what a NUMA node's CPUs are taken from (pkg/driver/dra_hooks.go of dra-driver-cpu, --cpu-device-mode=grouped).
	cpuCapacity = "dra.cpu/cpu"
)

// NUMANodeAttribute is the standard one, PreviousNUMANodeAttribute that of drivers that do not have it yet: dra-driver-cpu up to
// v0.2.0 and dranet up to v1.4.0.
const (
	NUMANodeAttribute                                   = deviceattribute.StandardDeviceAttributeNUMANode
	PreviousNUMANodeAttribute resourceapi.QualifiedName = v1alpha1.AttributePreviousNUMANode
)

// Options of a template.
type Options struct {
	// Name of the template; empty for one made of the form.
	Name string
	// Driver is the name of Cleave's driver.
	Driver string
	// CPUClass and NICClass are DeviceClasses of the other drivers.
	CPUClass, NICClass string
	// NUMANode is the attribute that devices of one NUMA node have in common.
	NUMANode string
}

// The names of requests.
const (
	gpuRequest = "gpus"
	cpuRequest = "cpus"
	nicRequest = "nics"
)

// Template writes the template of a form. The allocator takes requests in their order and tries all combinations of one for each of those
// before it. So those with the fewest candidates come first: one of the NUMA nodes' CPUs, then cards, then GPUs or their many partitions.
func (f *Form) Template(o Options) *resourceapi.ResourceClaimTemplate {
	devices := resourceapi.DeviceClaim{}
	add := func(name string, exactly resourceapi.ExactDeviceRequest) {
		exactly.AllocationMode = resourceapi.DeviceAllocationModeExactCount
		devices.Requests = append(devices.Requests, resourceapi.DeviceRequest{Name: name, Exactly: &exactly})
	}
	if f.CPUs > 0 {
		add(cpuRequest, resourceapi.ExactDeviceRequest{DeviceClassName: o.CPUClass, Count: 1,
			Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
				cpuCapacity: *resource.NewQuantity(f.CPUs, resource.DecimalSI)}}})
	}
	if f.NICs > 0 {
		add(nicRequest, resourceapi.ExactDeviceRequest{DeviceClassName: o.NICClass, Count: f.NICs})
	}
	add(gpuRequest, f.gpus(o))
	devices.Constraints = f.constraints(o)
	name := o.Name
	if name == "" {
		name = f.name()
	}
	return &resourceapi.ResourceClaimTemplate{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaimTemplate"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: devices}},
	}
}

// gpus is the request for devices of GPUs.
func (f *Form) gpus(o Options) resourceapi.ExactDeviceRequest {
	r := resourceapi.ExactDeviceRequest{DeviceClassName: f.class(), Count: f.Devices}
	switch {
	case f.Memory == nil:
	case f.Kind == shared || f.Kind == mps: // claims take parts of it
		r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": *f.Memory}}
	default:
		r.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(
			"device.capacity[%q].memory.compareTo(quantity(%q)) >= 0", o.Driver, f.Memory.String())}}}
	}
	return r
}

// class is the DeviceClass of the devices of GPUs.
func (f *Form) class() string {
	switch f.Kind {
	case whole:
		return "gpu.cleave.dev"
	case shared:
		return "timeslice.cleave.dev"
	case mps:
		return "mps.cleave.dev"
	}
	return "mig-" + strings.ReplaceAll(f.Kind, "+", ".") + ".cleave.dev"
}

// constraints are the conditions. CPUs are below no PCIe root, and only GPUs have NVLink.
func (f *Form) constraints(o Options) []resourceapi.DeviceConstraint {
	var all []resourceapi.DeviceConstraint
	add := func(attribute string, requests ...string) {
		name := resourceapi.FullyQualifiedName(attribute)
		all = append(all, resourceapi.DeviceConstraint{Requests: requests, MatchAttribute: &name})
	}
	underRoot := []string{gpuRequest}
	if f.NICs > 0 {
		underRoot = append(underRoot, nicRequest)
	}
	for _, c := range f.Conditions {
		switch c {
		case OneNUMANode:
			add(o.NUMANode) // of no requests, it is for all
		case OnePCIeRoot:
			add(string(deviceattribute.StandardDeviceAttributePCIeRoot), underRoot...)
		case OneNVLinkDomain:
			add(o.Driver+"/nvlinkGroup", gpuRequest)
		}
	}
	return all
}

// name is a name for the template, such as 4-gpus-48-cpus-4-nics.
func (f *Form) name() string {
	counted := func(n int64, one string) string {
		if n != 1 {
			one += "s"
		}
		return fmt.Sprintf("%d-%s", n, one)
	}
	name := fmt.Sprintf("%d-%s", f.Devices, strings.ReplaceAll(f.Kind, "+", "."))
	if f.Kind == whole {
		name = counted(f.Devices, whole)
	}
	if f.CPUs > 0 {
		name += "-" + counted(f.CPUs, "cpu")
	}
	if f.NICs > 0 {
		name += "-" + counted(f.NICs, "nic")
	}
	return name
}

// Notes say what a form does not say and people may expect of it.
func (f *Form) Notes() []string {
	var notes []string
	if f.CPUs+f.NICs > 0 && !f.Has(OneNUMANode) && (f.CPUs > 0 || !f.Has(OnePCIeRoot)) {
		notes = append(notes, fmt.Sprintf("without %q, GPUs, CPUs and network cards may be far from one another", OneNUMANode))
	}
	if f.CPUs > 0 {
		notes = append(notes, fmt.Sprintf("request %d CPUs in the pod's resources, too: the scheduler counts those apart from the claim's",
			f.CPUs))
	}
	return notes
}
