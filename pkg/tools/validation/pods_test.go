// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// deployment is one of pods with this spec.
func deployment(spec string) string {
	return "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d, namespace: team}\nspec: {template: {spec: " + spec + "}}\n"
}

func limits(text string) string {
	return "{containers: [{name: main, resources: {limits: {" + text + "}}}]}"
}

// Pods are checked before they are created.
func TestFiles_Pods(t *testing.T) {
	const (
		at      = "f.yaml: Deployment team/d: spec.template.spec"
		asks    = templateHead + "spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.cleave.dev}}]}}}\n---\n"
		both    = templateHead + "spec: {spec: {devices: {requests: [{name: share, exactly: {deviceClassName: mps.cleave.dev}}, {name: whole, exactly: {deviceClassName: gpu.cleave.dev}}]}}}\n---\n"
		claims  = "resourceClaims: [{name: gpu, resourceClaimTemplateName: t}]"
		uses    = "{containers: [{name: main, resources: {claims: [{name: gpu}]}}], " + claims + "}"
		twice   = "{containers: [{name: main, resources: {claims: [{name: gpu}], limits: {nvidia.com/gpu: 1}}}], " + claims + "}"
		unnamed = "{containers: [{name: main}], " + claims + "}"
	)
	tests := map[string]struct {
		file string
		want checked
	}{
		"with its template":    {asks + deployment(uses), checked{Checked: []string{"ResourceClaimTemplate t", "Deployment team/d"}}},
		"without":              {deployment(uses), checked{Checked: []string{"Deployment team/d"}, Notes: []string{at + `.resourceClaims[0].resourceClaimTemplateName: ResourceClaimTemplate "t" is not in these files: not checked`}}},
		"no claims":            {deployment("{containers: [{name: main, resources: {limits: {cpu: 1}}}]}"), checked{PassedOver: []string{"Deployment team/d"}}},
		"a claim of nobody":    {asks + deployment(unnamed), checked{Checked: []string{"ResourceClaimTemplate t", "Deployment team/d"}, Problems: []string{at + `: no container names claim "gpu": its devices are allocated, and no container gets them. Add resources: {claims: [{name: gpu}]} to one`}}},
		"a request of nobody":  {asks + deployment("{containers: [{name: main, resources: {claims: [{name: gpu, request: gpus}]}}], "+claims+"}"), checked{Checked: []string{"ResourceClaimTemplate t", "Deployment team/d"}, Problems: []string{at + `: container main names request "gpus" of claim "gpu", which has none of that name: the container gets no device of it. Name gpu`, at + `: no container names request "gpu" of claim "gpu": its devices are allocated, and no container gets them`}}},
		"twice":                {asks + deployment(twice), checked{Checked: []string{"ResourceClaimTemplate t", "Deployment team/d"}, Notes: []string{at + `: container main names claim "gpu" and asks for nvidia.com/gpu: it gets the devices of both. Remove one of them`}}},
		"a node by name":       {asks + deployment("{nodeName: n1, "+uses[1:]), checked{Checked: []string{"ResourceClaimTemplate t", "Deployment team/d"}, Problems: []string{at + `.nodeName: Forbidden: a scheduler allocates devices, and looks at no pod that has a node: select the node by nodeSelector`}}},
		"no claim of the name": {deployment("{containers: [{name: main, resources: {claims: [{name: gpu}]}}]}"), checked{Checked: []string{"Deployment team/d"}, Problems: []string{at + `.containers[0].resources.claims[0]: Not found: "gpu"`}}},
		"an unknown field":     {deployment("{containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}, claim: []}}]}"), checked{Checked: []string{"Deployment team/d"}, Problems: []string{`f.yaml: Deployment team/d: spec.template: unknown field "spec.containers[0].resources.claim"`}}},
		"no spec":              {"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: []\n", checked{Checked: []string{"Pod p"}, Problems: []string{"f.yaml: Pod p: json: cannot unmarshal array into Go struct field Pod.spec of type v1.PodSpec"}}},

		"a resource":                {deployment(limits("nvidia.com/gpu: 1")), checked{Checked: []string{"Deployment team/d"}}},
		"a resource, and a node":    {deployment("{nodeName: n1, " + limits("nvidia.com/gpu: 1")[1:]), checked{Checked: []string{"Deployment team/d"}, Notes: []string{at + `.nodeName: unless a device plugin serves the resource there: a scheduler allocates devices, and looks at no pod that has a node: select the node by nodeSelector`}}},
		"none of it, and a node":    {deployment("{nodeName: n1, " + limits("nvidia.com/gpu: 0")[1:]), checked{Checked: []string{"Deployment team/d"}}},
		"another's, and a node":     {deployment("{nodeName: n1, " + limits("example.com/fpga: 1")[1:]), checked{Checked: []string{"Deployment team/d"}}},
		"a profile":                 {deployment(limits("nvidia.com/mig-1g.10gb: 1")), checked{Checked: []string{"Deployment team/d"}}},
		"a profile with a typo":     {deployment(limits("nvidia.com/mig-1g.10g: 1")), checked{Checked: []string{"Deployment team/d"}, Problems: []string{at + ": no DeviceClass of these files or of Cleave serves the resource nvidia.com/mig-1g.10g: did you mean nvidia.com/mig-1g.10gb?"}}},
		"a tag like a number":       {deployment("{containers: [{name: main, image: 'r/app:83e6123', resources: {limits: {nvidia.com/gpu: 1}}}]}"), checked{Checked: []string{"Deployment team/d"}}},
		"a number without end":      {deployment(limits("nvidia.com/gpu: 1e999999999")), checked{Checked: []string{"Deployment team/d"}, Problems: []string{`f.yaml: Deployment team/d: spec.template: spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "1e999999999": the number is out of bounds`}}},
		"a resource of its vendor":  {deployment(limits("nvidia.com/hostdev_cx7: 1")), checked{Checked: []string{"Deployment team/d"}, Notes: []string{at + ": no DeviceClass of these files or of Cleave serves the resource nvidia.com/hostdev_cx7: not checked"}}},
		"a resource of another one": {deployment(limits("example.com/fpga: 1")), checked{Checked: []string{"Deployment team/d"}}},
		"a resource of a class":     {deployment(limits("deviceclass.resource.kubernetes.io/gpu.cleave.de: 1")), checked{Checked: []string{"Deployment team/d"}, Notes: []string{at + `: resource deviceclass.resource.kubernetes.io/gpu.cleave.de: DeviceClass "gpu.cleave.de" is neither in these files nor one of Cleave's: not checked`}}},
		"of a class with a typo":    {deployment(limits("deviceclass.resource.kubernetes.io/gpus.cleave.dev: 1")), checked{Checked: []string{"Deployment team/d"}, Problems: []string{at + `: resource deviceclass.resource.kubernetes.io/gpus.cleave.dev: it is neither in these files nor one of Cleave's: did you mean gpu.cleave.dev?`}}},
		"a class of the files":      {deployment(limits("nvidia.com/gpu-large: 1")) + "---\n" + classHead + "spec: {extendedResourceName: nvidia.com/gpu-large, selectors: [{cel: {expression: device.driver == 'gpu.cleave.dev'}}]}\n", checked{Checked: []string{"Deployment team/d", "DeviceClass mine.example.com"}}},
		"a class with a typo":       {claim("deviceClassName: mig-1g.10g.cleave.dev"), checked{Checked: []string{"ResourceClaim team/c"}, Problems: []string{`f.yaml: ResourceClaim team/c: spec.devices.requests[0].exactly.deviceClassName: Invalid value: "mig-1g.10g.cleave.dev": it is neither in these files nor one of Cleave's: did you mean mig-1g.10gb.cleave.dev?`}}},
		"an imported class":         {claim("deviceClassName: gpu.device-plugin.cleave.dev"), checked{Checked: []string{"ResourceClaim team/c"}}},
		"a class of NVIDIA":         {claim("deviceClassName: gpu.nvidia.com"), checked{Checked: []string{"ResourceClaim team/c"}, Notes: []string{`f.yaml: ResourceClaim team/c: spec.devices.requests[0].exactly.deviceClassName: class "gpu.nvidia.com" is of NVIDIA's driver, and Cleave serves it only if it is installed so: docs/nvidia-compatible.md`}}},
		"several shares":            {deployment(limits("nvidia.com/gpu.shared: 2")), checked{Checked: []string{"Deployment team/d"}, Notes: []string{at + ": container main asks for 2 of nvidia.com/gpu.shared: it gets one share of each of 2 GPUs, not more of one. Ask for 1, or for whole GPUs"}}},
		"a share and a GPU": {both + deployment("{containers: [{name: main, resources: {claims: [{name: gpu}]}}], "+claims+"}"), checked{Checked: []string{"ResourceClaimTemplate t", "Deployment team/d"}, Notes: []string{
			at + `: container main gets an MPS share (request "share" of claim "gpu") and other devices (request "whole" of claim "gpu"): its CUDA programs find only the device of one MPS server, and the rest is wasted. Give each a container of its own, which names its request in resources.claims`}}},
		"a share and a GPU apart": {both + deployment("{containers: [{name: main, resources: {claims: [{name: gpu, request: share}]}}, {name: side, resources: {claims: [{name: gpu, request: whole}]}}], "+claims+"}"), checked{Checked: []string{"ResourceClaimTemplate t", "Deployment team/d"}}},
		"a share and a resource": {deployment(limits("nvidia.com/gpu: 1, deviceclass.resource.kubernetes.io/mps.cleave.dev: 1")), checked{Checked: []string{"Deployment team/d"}, Notes: []string{
			at + `: container main gets an MPS share (deviceclass.resource.kubernetes.io/mps.cleave.dev) and other devices (nvidia.com/gpu): its CUDA programs find only the device of one MPS server, and the rest is wasted. Give each a container of its own`}}},
		"a share of a class of the files": {both + deployment("{containers: [{name: main, resources: {claims: [{name: gpu, request: whole}], limits: {nvidia.com/small: 1}}}, {name: side, resources: {claims: [{name: gpu, request: share}]}}], "+claims+"}") + "---\n" + classHead + "spec: {extendedResourceName: nvidia.com/small, selectors: [{cel: {expression: \"device.driver == 'gpu.cleave.dev' && device.attributes['gpu.cleave.dev'].type == 'mps'\"}}]}\n", checked{Checked: []string{"ResourceClaimTemplate t", "Deployment team/d", "DeviceClass mine.example.com"}, Notes: []string{
			at + `: container main gets an MPS share (nvidia.com/small) and other devices (request "whole" of claim "gpu"): its CUDA programs find only the device of one MPS server, and the rest is wasted. Give each a container of its own`}}},
		"names that devices have": {claim(`deviceClassName: mig.cleave.dev, selectors: [{cel: {expression: 'device.attributes["gpu.cleave.dev"].profile == "1g.10gb" && device.capacity["gpu.cleave.dev"].memory.isGreaterThan(quantity("1Gi")) && device.attributes["resource.kubernetes.io"].pcieRoot != ""'}}], capacity: {requests: {memory: 1Gi}}`),
			checked{Checked: []string{"ResourceClaim team/c"}}},
		"attributes and amounts with typos": {claim(`deviceClassName: mps.cleave.dev, selectors: [{cel: {expression: 'device.attributes["gpu.nvidia.com"].productName == "x" && device.capacity["gpu.cleave.dev"].mem.isGreaterThan(quantity("1Gi"))'}}], capacity: {requests: {core: 1}}`),
			checked{Checked: []string{"ResourceClaim team/c"}, Notes: []string{
				`f.yaml: ResourceClaim team/c: spec.devices.requests[0].exactly.selectors[0].cel.expression: no device of Cleave has the attribute gpu.nvidia.com/productName: did you mean gpu.cleave.dev/productName?`,
				`f.yaml: ResourceClaim team/c: spec.devices.requests[0].exactly.selectors[0].cel.expression: no device of Cleave has the capacity gpu.cleave.dev/mem: did you mean gpu.cleave.dev/memory?`,
				`f.yaml: ResourceClaim team/c: spec.devices.requests[0].exactly.capacity.requests[core]: no device of Cleave has this capacity: did you mean cores?`}}},
		"an amount with the domain": {claim("deviceClassName: mps.cleave.dev, capacity: {requests: {gpu.cleave.dev/cores: 1}}"), checked{Checked: []string{"ResourceClaim team/c"},
			Notes: []string{"f.yaml: ResourceClaim team/c: spec.devices.requests[0].exactly.capacity.requests[gpu.cleave.dev/cores]: no device of Cleave has this capacity: did you mean cores?"}}},
		"memory without a unit": {claim("deviceClassName: mps.cleave.dev, capacity: {requests: {memory: 10, cores: 10}}"), checked{Checked: []string{"ResourceClaim team/c"},
			Notes: []string{"f.yaml: ResourceClaim team/c: spec.devices.requests[0].exactly.capacity.requests[memory]: 10 is in bytes, less than any device has: write a unit, such as Gi"}}},
		"memory in thousandths": {claim("deviceClassName: mps.cleave.dev, capacity: {requests: {memory: 1500m}}"), checked{Checked: []string{"ResourceClaim team/c"},
			Notes: []string{"f.yaml: ResourceClaim team/c: spec.devices.requests[0].exactly.capacity.requests[memory]: 1500m is in bytes, less than any device has: write a unit, such as Gi"}}},
		"names of another's devices": {claim(`deviceClassName: nic.example.com, selectors: [{cel: {expression: 'device.attributes["nic.example.com"].speed == "x"'}}], capacity: {requests: {bandwidth: 1}}`), checked{Checked: []string{"ResourceClaim team/c"}}},
		"a constraint with a typo": {claimHead + "spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.cleave.dev, count: 2}}], constraints: [{matchAttribute: gpu.cleave.dev/nvlinkgroup}, {matchAttribute: nic.example.com/rail}]}}", checked{Checked: []string{"ResourceClaim team/c"},
			Notes: []string{`f.yaml: ResourceClaim team/c: spec.devices.constraints[0].matchAttribute: no device of Cleave has the attribute gpu.cleave.dev/nvlinkgroup: did you mean gpu.cleave.dev/nvlinkGroup?`}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, check(t, directory(t, map[string]string{"f.yaml": tt.file}), Options{})); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
		})
	}
}

// A pod is held against a node with all that it asks for at once.
func TestFiles_PodsOnNode(t *testing.T) {
	const asks = templateHead + "spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.cleave.dev, count: 5}}]}}}\n---\n"
	pods := func(limit string) string {
		return asks + deployment("{nodeSelector: {zone: a}, containers: [{name: a, resources: {claims: [{name: gpu}]}}, {name: b, resources: {limits: {"+limit+
			"}}}], resourceClaims: [{name: gpu, resourceClaimTemplateName: t}]}")
	}
	const at = "f.yaml: Deployment team/d: spec.template.spec: Invalid value: not allocated on an hgx-h100: "
	for name, tt := range map[string]struct {
		file string
		want []string
	}{
		"both":       {pods("nvidia.com/gpu: 3"), nil},
		"not both":   {pods("nvidia.com/gpu: 4"), []string{at + "each request fits on its own, but not all together"}},
		"too many":   {deployment(limits("nvidia.com/gpu: 9")), []string{at + "9 devices requested, but only 8 fit"}},
		"no profile": {deployment(limits("nvidia.com/mig-1g.5gb: 1")), []string{at + "none of its devices is of class mig-1g.5gb.cleave.dev: the node offers whole GPUs, partitions (1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb), time slices, MPS shares"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := check(t, directory(t, map[string]string{"f.yaml": tt.file}), Options{Node: node(t, "hgx-h100")})
			if diff := cmp.Diff(tt.want, got.Problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}
