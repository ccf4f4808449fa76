// SPDX-License-Identifier: Apache-2.0

package scheduling

// Words that several have.
const (
	mps    = "mps.cleave.dev"
	wasted = "its CUDA programs find only the device of one MPS server, and the rest is wasted. Give each a container of its own"
	denied = "ValidatingAdmissionPolicy 'cleave-claims' with binding 'cleave-claims' denied request"
)

// shareAndGPU are requests for an MPS share and a whole GPU.
const shareAndGPU = "requests: [{name: share, exactly: {deviceClassName: mps.cleave.dev}}, {name: whole, exactly: {deviceClassName: gpu.cleave.dev}}]"

// fine is validate's answer where a file does not show the mistake.
var fine = ok(": ok: ")

// mistakes are those that were seen of people who used Cleave for the first time.
var mistakes = []mistake{
	{"a class that is misspelled", asks(request("mig-1g.10g.cleave.dev")), ok("this release of Cleave has no class mig-1g.10g.cleave.dev"),
		bad("it is neither in these files nor one of Cleave's: did you mean mig-1g.10gb.cleave.dev?"), answer{},
		bad("DeviceClass mig-1g.10g.cleave.dev does not exist: did you mean mig-1g.10gb.cleave.dev?")},
	{"the class of another driver", asks(request("gpu.nvidia.com")), ok(),
		ok(`note: `, `class "gpu.nvidia.com" is of NVIDIA's driver, and Cleave serves it only if it is installed so`), answer{},
		bad("DeviceClass gpu.nvidia.com does not exist", "it is of NVIDIA's driver: choose one of kubectl get deviceclasses, or have Cleave serve it")},
	{"a profile of another board", asks(request("mig-1g.5gb.cleave.dev")), ok(), fine,
		bad("none of its devices is of class mig-1g.5gb.cleave.dev: the node offers whole GPUs, partitions (1g.10gb"),
		bad("never fits the nodes of this cluster", "no node has a device of class mig-1g.5gb.cleave.dev", "What would fit now:\n  1 of class mig-1g.10gb.cleave.dev on n1")},
	{"more memory than a GPU has", asks(request(mps, "capacity: {requests: {memory: 100Gi}}")), ok(), fine,
		bad("8 devices are too small: memory 100Gi requested, at most 79Gi available"),
		bad("memory 100Gi requested, and no node has a device of class mps.cleave.dev with more than 79Gi", "1 of class mps.cleave.dev with up to cores 100, memory 79Gi on n1")},
	{"more than all cores", asks(request(mps, "capacity: {requests: {cores: 150}}")), bad(denied, "asks for more than 100 cores: they are percent of a GPU or partition"),
		bad("no GPU has more than 100"), answer{}, bad("no GPU has more than 100")},
	{"two MPS shares in one request", asks(request(mps, "count: 2")), bad(denied, "can have one device only: a container can use those of one GPU"),
		bad("class mps.cleave.dev gives one share a request"), answer{}, bad("class mps.cleave.dev gives one share a request")},
	{"an unknown field of parameters", given(request("timeslice.cleave.dev"), "gpu.cleave.dev", shareConfig+"timeSlice: {seconds: 3}"),
		bad(denied, "timeSlice.interval must be Default, Short, Medium or Long, and there are no other fields"),
		bad(`parameters: unknown field "timeSlice.seconds"`), answer{}, bad(`parameters: unknown field "timeSlice.seconds"`)},
	{"an unknown kind of parameters", given(request("timeslice.cleave.dev"), "gpu.cleave.dev", "apiVersion: gpu.cleave.dev/v1alpha1, kind: SharingConfig, timeSlice: {interval: Long}"),
		bad(denied, "unknown apiVersion or kind in gpu.cleave.dev/v1alpha1 SharingConfig: want gpu.cleave.dev/v1alpha1 ShareConfig"),
		bad(`unknown kind "SharingConfig" in gpu.cleave.dev/v1alpha1: want ShareConfig`), answer{}, bad(`unknown kind "SharingConfig"`)},
	{"parameters of a share on a whole GPU", given(request("gpu.cleave.dev"), "gpu.cleave.dev", shareConfig+"mps: {activeThreadPercentage: 50}"),
		bad(denied, "remove it, or name the requests that it is for"), bad(`request "gpu" is of class gpu.cleave.dev, and mps is for class mps.cleave.dev`), answer{},
		bad(`request "gpu" is of class gpu.cleave.dev, and mps is for class mps.cleave.dev`)},
	{"parameters that raise a limit", given(request(mps, "capacity: {requests: {cores: 25}}"), "gpu.cleave.dev", shareConfig+"mps: {activeThreadPercentage: 50}"),
		bad(denied, "parameters can lower it, not raise it"), bad(`request "gpu" asks for 25 cores: parameters can lower what a request asks for, not raise it`), answer{},
		bad(`request "gpu" asks for 25 cores`)},
	{"a request with a wrong name", asks("requests: [{name: GPU_1, exactly: {deviceClassName: gpu.cleave.dev}}]"),
		bad(`spec.spec.devices.requests[0].name: Invalid value: "GPU_1"`), bad(`requests[0].name: Invalid value: "GPU_1"`), answer{}, bad(`requests[0].name: Invalid value: "GPU_1"`)},
	{"an amount in GB", asks(request(mps, "capacity: {requests: {memory: 20GB}}")),
		bad("quantities must match the regular expression"), bad("quantities must match the regular expression"), answer{}, bad("quantities must match the regular expression")},
	{"an amount without a unit", asks(request(mps, "capacity: {requests: {memory: 10}}")), ok("memory 10 is in bytes, less than any device has: write a unit, such as Gi"),
		ok("note: ", "10 is in bytes, less than any device has: write a unit, such as Gi"), answer{}, ok(" fits:")},
	{"a selector that does not compile", selecting(`device.attributes["gpu.cleave.dev"].productName = "x"`),
		bad("compilation failed", "Syntax error"), bad("compilation failed", "Syntax error"), answer{}, bad("compilation failed", "Syntax error")},
	{"an amount compared with a number", selecting(`device.capacity["gpu.cleave.dev"].memory > 40`),
		bad("found no matching overload for '_>_'"), bad("found no matching overload for '_>_'"), answer{}, bad("found no matching overload for '_>_'")},
	{"a claim that no container names", pod("  containers: [{name: c, image: i}]\n", claims) + template(request("gpu.cleave.dev")),
		ok("no container names claim gpu in resources.claims: if it is for GPUs, they are allocated, and no container gets them"),
		bad(`no container names claim "gpu": its devices are allocated, and no container gets them`), answer{},
		ok(`No container names claim "gpu": its devices are allocated, and no container gets them`)},
	{"a claim and an extended resource", pod("  containers: [{name: c, image: i, resources: {claims: [{name: gpu}], limits: {nvidia.com/gpu: 1}}}]\n", claims) + template(request("gpu.cleave.dev")),
		ok("container c names a claim and asks for an extended resource for GPUs"), ok(`note: `, `container c names claim "gpu" and asks for nvidia.com/gpu: it gets the devices of both`), answer{},
		ok(`Container c names claim "gpu" and asks for nvidia.com/gpu: it gets the devices of both`)},
	{"parameters for another driver", given(request(mps), "gpu.nvidia.com", shareConfig+"mps: {activeThreadPercentage: 50}"),
		ok("parameters for driver gpu.nvidia.com are ignored: all requests that they are for are of classes of Cleave. Name driver gpu.cleave.dev"),
		ok("note: ", `driver "gpu.nvidia.com" is not Cleave's, which ignores these parameters: did you mean "gpu.cleave.dev"?`), answer{},
		ok("Claim default/gpu has parameters for driver gpu.nvidia.com, of which no node has devices")},
	{"a template that does not exist", pod(uses, "  resourceClaims: [{name: gpu, resourceClaimTemplateName: tt}]\n") + template(request("gpu.cleave.dev")), ok(),
		ok("note: ", `ResourceClaimTemplate "tt" is not in these files: not checked`), answer{}, bad("ResourceClaimTemplate tt does not exist in the pod's namespace")},
	{"an attribute that is misspelled", selecting(`device.attributes["gpu.cleave.dev"].productname == "x"`), ok(),
		ok("note: ", "no device of Cleave has the attribute gpu.cleave.dev/productname: did you mean gpu.cleave.dev/productName?"), answer{},
		bad("reads the attribute gpu.cleave.dev/productname, which no device has: did you mean gpu.cleave.dev/productName?")},
	{"an attribute of another driver", selecting(`device.attributes["gpu.nvidia.com"].productName == "x"`), ok(),
		ok("note: ", "no device of Cleave has the attribute gpu.nvidia.com/productName: did you mean gpu.cleave.dev/productName?"), answer{},
		bad("reads the attribute gpu.nvidia.com/productName, which no device has: did you mean gpu.cleave.dev/productName?")},
	{"a constraint that is misspelled", asks(request("gpu.cleave.dev", "count: 2") + ", constraints: [{matchAttribute: gpu.cleave.dev/nvlinkgroup}]"), ok(),
		ok("note: ", "no device of Cleave has the attribute gpu.cleave.dev/nvlinkgroup: did you mean gpu.cleave.dev/nvlinkGroup?"), answer{},
		bad("the constraint needs the attribute gpu.cleave.dev/nvlinkgroup, which no device has: did you mean gpu.cleave.dev/nvlinkGroup?")},
	// CEL takes the names from a map, in any order.
	{"capacities that are misspelled", asks(request(mps, "capacity: {requests: {core: 25, mem: 20Gi}}")), ok("no device of Cleave has capacity ", "core", "mem", "There are memory, cores and shares"),
		ok("note: ", "requests[core]: no device of Cleave has this capacity: did you mean cores?", "requests[mem]: no device of Cleave has this capacity: did you mean memory?"),
		bad("asks for the capacity core, which no device has: did you mean cores?"),
		bad("asks for the capacity core, which no device has: did you mean cores?", "asks for the capacity mem, which no device has: did you mean memory?", "they have cores, memory, shares")},
	{"a selector that is false", selecting(`device.attributes["gpu.cleave.dev"].productName == "NVIDIA A100-SXM4-80GB"`), ok(), fine,
		bad(`8 devices do not match`, `productName is "NVIDIA H100 80GB HBM3"`),
		bad("never fits the nodes of this cluster", `productName is "NVIDIA H100 80GB HBM3"`, "1 of class gpu.cleave.dev without the selectors on n1")},
	{"more GPUs than a node has", asks(request("gpu.cleave.dev", "count: 9")), ok(), fine, bad("9 devices requested, but only 8 fit"),
		bad("never fits the nodes of this cluster", "9 devices requested, and no node has more than 8", "5 of class gpu.cleave.dev on n1")},
	{"more GPUs than are free", asks(request("gpu.cleave.dev", "count: 6")), ok(), fine, fine,
		bad("fits no node now", "6 devices requested, but only 5 fit", "3 devices are allocated to default/holder-0, default/holder-1, default/holder-2")},
	{"an extended resource that is misspelled", limits("nvidia.com/mig-1g.10g: 1"), ok("this release of Cleave has no class for nvidia.com/mig-1g.10g"),
		bad("no DeviceClass of these files or of Cleave serves the resource nvidia.com/mig-1g.10g: did you mean nvidia.com/mig-1g.10gb?"), answer{},
		bad("no DeviceClass serves the extended resource nvidia.com/mig-1g.10g, and no node advertises it: did you mean nvidia.com/mig-1g.10gb?")},
	{"more of an extended resource than a node has", limits("nvidia.com/gpu: 9"), ok(), fine, bad("9 devices requested, but only 8 fit"),
		bad("never fits the nodes of this cluster", "9 devices requested, and no node has more than 8")},
	{"a node selector that fits no node", pod(uses, claims, "  nodeSelector: {gpu: h100}\n") + template(request("gpu.cleave.dev")), ok(), fine, answer{},
		bad("the pod's node selector or affinity excludes it")},
	{"more CPUs than a node has", pod("  containers: [{name: c, image: i, resources: {claims: [{name: gpu}], requests: {cpu: 1000}}}]\n", claims) + template(request("gpu.cleave.dev")), ok(), fine, answer{},
		ok("enough devices are free", "It asks for 1k of cpu, and no node where devices are free has more than 128")},
	{"shares of partitions without their policy", asks(request("mig-mps.cleave.dev")), ok(), fine, bad("none of its devices is of class mig-mps.cleave.dev"),
		bad("never fits the nodes of this cluster", "no node shares such partitions, by mig.share of its policy", "1 of class mps.cleave.dev with up to cores 100, memory 79Gi on n1")},
	{"two time-sliced shares for one container", limits("nvidia.com/gpu.shared: 2"), ok("container c asks for several time-sliced shares: it gets one of each of as many GPUs, not more of one"),
		ok("note: ", "container c asks for 2 of nvidia.com/gpu.shared: it gets one share of each of 2 GPUs, not more of one"), answer{},
		ok("Container c asks for 2 of nvidia.com/gpu.shared: it gets one share of each of 2 GPUs, not more of one")},
	{"an MPS share and a GPU for one container", asks(shareAndGPU), ok(), // TestMistakes_MPS has the template stored
		ok("note: ", `container c gets an MPS share (request "share" of claim "gpu") and other devices (request "whole" of claim "gpu"): `+wasted+", which names its request in resources.claims"), answer{},
		ok(`Container c gets an MPS share (request "share" of claim "gpu") and other devices (request "whole" of claim "gpu"): ` + wasted)},
	{"two MPS shares for one container", limits("deviceclass.resource.kubernetes.io/mps.cleave.dev: 2"), ok("container c asks for an MPS share and for more: its CUDA programs find only the device of one MPS server, and the rest is wasted"),
		ok("note: ", "container c gets several MPS shares (2 of deviceclass.resource.kubernetes.io/mps.cleave.dev)"), answer{},
		ok("Container c gets several MPS shares (2 of deviceclass.resource.kubernetes.io/mps.cleave.dev)")},
}
