// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/common/types"
	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/deployments/manifests"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/tools/migrate"
)

// said is what a policy says of an object that is created, or updated. An expression that fails is an error.
func said(t *testing.T, policy claimPolicy, text, before string) []string {
	t.Helper()
	return saidWith(t, policy, nil, text, before)
}

// saidWith is what a policy with parameters says.
func saidWith(t *testing.T, policy claimPolicy, params runtime.Object, text, before string) []string {
	t.Helper()
	read := func(text string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
			t.Fatal(err)
		}
		return u
	}
	object := read(text)
	attributes, request := requestOf(object.GroupVersionKind(), object.GetName(), object, nil)
	if before != "" {
		attributes, request = requestOf(object.GroupVersionKind(), object.GetName(), object, read(before))
	}
	evaluate := func(all plugincel.ConditionEvaluator) (values []any) {
		results, _, err := all.ForInput(t.Context(), attributes, request, plugincel.OptionalVariableBindings{VersionedParams: params}, nil, cel.RuntimeCELCostBudget)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if r.Error != nil {
				t.Fatal(r.Error)
			}
			values = append(values, r.EvalResult.Value())
		}
		return values
	}
	if slices.Contains(evaluate(policy.matches), any(false)) {
		return nil
	}
	var found []string
	messages := evaluate(policy.says)
	for i, ok := range evaluate(policy.validates) {
		if ok != types.True.Value() {
			found = append(found, fmt.Sprint(messages[i]))
		}
	}
	return found
}

func workload(kind, spec string) string {
	of := map[string]string{
		"v1 Pod": "%s", "apps/v1 Deployment": "{template: {spec: %s}}", "apps/v1 StatefulSet": "{template: {spec: %s}}", "apps/v1 DaemonSet": "{template: {spec: %s}}",
		"batch/v1 Job": "{template: {spec: %s}}", "batch/v1 CronJob": "{jobTemplate: {spec: {template: {spec: %s}}}}",
	}[kind]
	version, name, _ := strings.Cut(kind, " ")
	return "{apiVersion: " + version + ", kind: " + name + ", metadata: {name: x}, spec: " + fmt.Sprintf(of, spec) + "}"
}

// What runs without a word elsewhere.
func TestPolicy_PodWarnings(t *testing.T) {
	policy := policyOf(t, "cleave-pod-warnings")
	const claims = "resourceClaims: [{name: gpu, resourceClaimTemplateName: t}, {name: nic, resourceClaimName: n}]"
	const unused = " in resources.claims: if it is for GPUs, they are allocated, and no container gets them"
	const twice = " names a claim and asks for an extended resource for GPUs: if the claim is for GPUs, too, it gets the devices of both. Remove one of them"
	const mps = "deviceclass.resource.kubernetes.io/mps.cleave.dev"
	const wasted = " asks for an MPS share and for more: its CUDA programs find only the device of one MPS server, and the rest is wasted. Ask for one share, or give each a container of its own"
	for name, tt := range map[string]struct {
		spec string
		want []string
	}{
		"no claims":          {"{containers: [{name: a}]}", nil},
		"a resource":         {"{containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}", nil},
		"used":               {"{containers: [{name: a, resources: {claims: [{name: gpu, request: r}]}}], initContainers: [{name: i, resources: {claims: [{name: nic}]}}], " + claims + "}", nil},
		"unused":             {"{containers: [{name: a, resources: {claims: [{name: nic}]}}, {name: b}], " + claims + "}", []string{"no container names claim gpu" + unused}},
		"all unused":         {"{containers: [{name: a}], " + claims + "}", []string{"no container names claim gpu, nic" + unused}},
		"twice":              {"{containers: [{name: a, resources: {claims: [{name: gpu}, {name: nic}], limits: {nvidia.com/gpu: 1}}}], " + claims + "}", []string{"container a" + twice}},
		"twice, partitions":  {"{containers: [{name: b, resources: {limits: {cpu: 1}}}, {name: a, resources: {claims: [{name: gpu}, {name: nic}], limits: {nvidia.com/mig-1g.10gb: 1}}}], " + claims + "}", []string{"container a" + twice}},
		"a claim, and none":  {"{containers: [{name: a, resources: {claims: [{name: gpu}, {name: nic}], limits: {nvidia.com/gpu: 0}}}, {name: b, resources: {claims: [{name: gpu}], limits: {nvidia.com/gpu: '0'}}}], " + claims + "}", nil},
		"a claim and memory": {"{containers: [{name: a, resources: {claims: [{name: gpu}, {name: nic}], limits: {memory: 1Gi, example.com/nic: 1}}}], " + claims + "}", nil},
		"a misspelled profile": {"{containers: [{name: a, resources: {limits: {nvidia.com/mig-1g.10g: 1}}}, {name: b, resources: {limits: {nvidia.com/mig-1g.10gb.me: 1}}}]}", []string{
			"this release of Cleave has no class for nvidia.com/mig-1g.10g: unless a class of yours or a device plugin serves it, the pod waits. See kubectl get deviceclasses -o wide"}},
		"a share":        {"{containers: [{name: a, resources: {limits: {nvidia.com/gpu.shared: 1, nvidia.com/gpu: 2}}}]}", nil},
		"MPS":            {"{containers: [{name: a, resources: {limits: {" + mps + ": 1}}}, {name: b, resources: {limits: {" + mps + ": '1', nvidia.com/gpu: 0, deviceclass.resource.kubernetes.io/nic.example.com: 1}}}]}", nil},
		"MPS and a GPU":  {"{containers: [{name: a, resources: {limits: {" + mps + ": 1, nvidia.com/gpu: 1}}}, {name: b, resources: {limits: {nvidia.com/gpu: 2}}}]}", []string{"container a" + wasted}},
		"two of MPS":     {"{containers: [{name: a}], initContainers: [{name: i, resources: {limits: {" + mps + ": '2'}}}, {name: j, resources: {limits: {" + mps + ": 1, deviceclass.resource.kubernetes.io/mig-mps.cleave.dev: 1}}}]}", []string{"container i, j" + wasted}},
		"several shares": {"{containers: [{name: a, resources: {limits: {nvidia.com/gpu.shared: '2'}}}]}", []string{"container a asks for several time-sliced shares: it gets one of each of as many GPUs, not more of one. Ask for 1, or for whole GPUs"}},
	} {
		for _, kind := range []string{"v1 Pod", "apps/v1 Deployment", "apps/v1 StatefulSet", "apps/v1 DaemonSet", "batch/v1 Job", "batch/v1 CronJob"} {
			object := workload(kind, tt.spec)
			if diff := cmp.Diff(tt.want, said(t, policy, object, "")); diff != "" {
				t.Errorf("%s of a %s (-want +got):\n%s", name, kind, diff)
			}
			if got := said(t, policy, object, object); got != nil {
				t.Errorf("%s of a %s, whose spec does not change: %q", name, kind, got)
			}
		}
	}
}

// A pod as large as they get stays below the limit of what an expression may cost.
func TestPolicy_LargePod(t *testing.T) {
	var containers, claims []string
	for i := range 256 {
		claims = append(claims, fmt.Sprintf("{name: c%d, resourceClaimName: c}", i))
	}
	for range 100 {
		containers = append(containers, "{name: a, resources: {claims: [{name: c254}], limits: {cpu: 1, memory: 1Gi, nvidia.com/gpu: 1}}}")
	}
	spec := "{containers: [" + strings.Join(containers, ", ") + "], resourceClaims: [" + strings.Join(claims, ", ") + "]}"
	if got := said(t, policyOf(t, "cleave-pod-warnings"), workload("apps/v1 Deployment", spec), ""); len(got) != 2 {
		t.Errorf("got %q", got)
	}
}

// The policy with a template is evaluated for each template of the namespace, each time with the whole limit of cost: it looks at small pods only.
func TestPolicy_ManyClaims(t *testing.T) {
	policy := policyOf(t, "cleave-mps-warnings")
	for name, tt := range map[string]struct {
		claims, uses, containers int
		want                     bool
	}{
		"none":            {0, 0, 1, false},
		"eight":           {8, 8, 16, true},
		"many claims":     {4000, 0, 1, false},
		"many uses":       {8, 4000, 1, false},
		"many containers": {8, 8, 2000, false},
	} {
		refs := slices.Repeat([]string{"{name: c, resourceClaimTemplateName: t}"}, tt.claims)
		container := "{name: a, resources: {claims: [" + strings.Join(slices.Repeat([]string{"{name: c}"}, tt.uses), ", ") + "]}}"
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(workload("v1 Pod", "{containers: ["+strings.Join(slices.Repeat([]string{container}, tt.containers), ", ")+
			"], resourceClaims: ["+strings.Join(refs, ", ")+"]}")), &object.Object); err != nil {
			t.Fatal(err)
		}
		attributes, request := requestOf(object.GroupVersionKind(), object.GetName(), object, nil)
		results, left, err := policy.matches.ForInput(t.Context(), attributes, request, plugincel.OptionalVariableBindings{}, nil, cel.RuntimeCELCostBudget)
		if err != nil {
			t.Fatal(err)
		}
		matches := !slices.ContainsFunc(results, func(r plugincel.EvaluationResult) bool { return r.Error != nil || r.EvalResult != types.True })
		if cost := cel.RuntimeCELCostBudget - left; matches != tt.want || cost > 2000 {
			t.Errorf("%s: matches %t at a cost of %d, want %t at a low cost", name, matches, cost, tt.want)
		}
	}
}

// Beside an MPS share the rest of a container's devices is wasted. The policy is asked once for each template of the namespace.
func TestPolicy_MPSWarnings(t *testing.T) {
	policy := policyOf(t, "cleave-mps-warnings")
	request := func(name, class string) string {
		return "{name: " + name + ", exactly: {deviceClassName: " + class + "}}"
	}
	share, gpu := request("s", "mps.cleave.dev"), request("g", "gpu.cleave.dev")
	const (
		refs  = "resourceClaims: [{name: x, resourceClaimTemplateName: t}, {name: w, resourceClaimTemplateName: t}, {name: z, resourceClaimTemplateName: u}]"
		finds = "its CUDA programs find only the device of one MPS server, and the rest is wasted. Give each a container of its own"
		gets  = " an MPS share and other devices of ResourceClaimTemplate t: " + finds + ", which names its request in resources.claims"
		other = " an MPS share of ResourceClaimTemplate t and names other claims: if those are for GPUs, too, " + finds
	)
	claims := func(container, uses string) string {
		return "{name: " + container + ", resources: {claims: [" + uses + "]}}"
	}
	for name, tt := range map[string]struct {
		requests   string
		containers string
		want       []string
	}{
		"nothing":                 {"", claims("a", "{name: x}, {name: w}"), nil},
		"a share":                 {share, claims("a", "{name: x}") + ", {name: b}", nil},
		"a GPU":                   {gpu, claims("a", "{name: x}, {name: w}, {name: z}"), nil},
		"another template's":      {share + ", " + gpu, claims("a", "{name: z}"), nil},
		"apart":                   {share + ", " + gpu, claims("a", "{name: x, request: s}") + ", " + claims("b", "{name: x, request: g}"), nil},
		"shares apart":            {share, claims("a", "{name: x}") + ", " + claims("b", "{name: w}"), nil},
		"a network card":          {share + ", " + request("n", "nic.example.com"), claims("a", "{name: x}"), nil},
		"a view of all":           {share + ", {name: g, exactly: {deviceClassName: gpu.cleave.dev, adminAccess: true, allocationMode: All}}", claims("a", "{name: x}"), nil},
		"a whole claim":           {share + ", " + gpu, claims("a", "{name: x}") + ", " + claims("b", "{name: x, request: g}"), []string{"container a gets" + gets}},
		"two requests":            {share + ", " + gpu, claims("a", "{name: x, request: s}, {name: x, request: g}"), []string{"container a gets" + gets}},
		"two shares":              {share + ", " + request("o", "mig-mps.cleave.dev"), claims("a", "{name: x}"), []string{"container a gets" + gets}},
		"two claims":              {share, claims("a", "{name: x}, {name: w}"), []string{"container a gets" + gets}},
		"perhaps":                 {"{name: f, firstAvailable: [{name: p, deviceClassName: mig.cleave.dev}, {name: s, deviceClassName: mps.cleave.dev}]}, " + gpu, claims("a", "{name: x}"), []string{"container a may get" + gets}},
		"one or the other":        {"{name: f, firstAvailable: [{name: p, deviceClassName: mig.cleave.dev}, {name: s, deviceClassName: mps.cleave.dev}]}", claims("a", "{name: x}"), nil},
		"another claim":           {share, claims("a", "{name: x}, {name: z}"), []string{"container a gets" + other}},
		"another claim, no share": {share + ", " + gpu, claims("a", "{name: x, request: g}, {name: z}"), nil},
	} {
		template := &resourceapi.ResourceClaimTemplate{}
		if err := yaml.UnmarshalStrict([]byte("{metadata: {name: t}, spec: {spec: {devices: {requests: ["+tt.requests+"]}}}}"), template); err != nil {
			t.Fatal(err)
		}
		for _, list := range []string{"containers: [%s]", "containers: [{name: main}], initContainers: [%s]"} {
			for _, kind := range []string{"v1 Pod", "apps/v1 Deployment", "batch/v1 CronJob"} {
				object := workload(kind, "{"+fmt.Sprintf(list, tt.containers)+", "+refs+"}")
				if diff := cmp.Diff(tt.want, saidWith(t, policy, template, object, "")); diff != "" {
					t.Errorf("%s of a %s, %s (-want +got):\n%s", name, kind, list, diff)
				}
				if got := saidWith(t, policy, template, object, object); got != nil {
					t.Errorf("%s of a %s, whose spec does not change: %q", name, kind, got)
				}
			}
		}
	}
	var requests, uses, claimRefs []string
	for i := range 32 {
		requests = append(requests, fmt.Sprintf("{name: r%d, firstAvailable: [%s{name: z, deviceClassName: mps.cleave.dev}]}", i, strings.Repeat("{name: a, deviceClassName: gpu.cleave.dev}, ", 7)))
	}
	for i := range 8 {
		uses = append(uses, fmt.Sprintf("{name: c%d, request: r0}, {name: c%d, request: r1}", i, i))
		claimRefs = append(claimRefs, fmt.Sprintf("{name: c%d, resourceClaimTemplateName: t}", i))
	}
	largest := &resourceapi.ResourceClaimTemplate{}
	if err := yaml.UnmarshalStrict([]byte("{metadata: {name: t}, spec: {spec: {devices: {requests: ["+strings.Join(requests, ", ")+"]}}}}"), largest); err != nil {
		t.Fatal(err)
	}
	spec := "{containers: [" + strings.Repeat(claims("a", strings.Join(uses, ", "))+", ", 16) + "], resourceClaims: [" + strings.Join(claimRefs, ", ") + "]}"
	if got := saidWith(t, policy, largest, workload("v1 Pod", spec), ""); len(got) != 1 {
		t.Errorf("a large pod of a large template: %q", got)
	}
}

func TestPolicy_ClaimWarnings(t *testing.T) {
	policy := policyOf(t, "cleave-claim-warnings")
	of := func(devices string) []string {
		return []string{"{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: c}, spec: {devices: {" + devices + "}}}",
			"{apiVersion: resource.k8s.io/v1, kind: ResourceClaimTemplate, metadata: {name: c}, spec: {spec: {devices: {" + devices + "}}}}"}
	}
	request := func(class string) string { return "{name: r, exactly: {deviceClassName: " + class + "}}" }
	config := func(driver string) string { return "config: [{opaque: {driver: " + driver + ", parameters: {a: b}}}]" }
	unknown := func(names string) []string {
		return []string{"this release of Cleave has no class " + names + ": unless you have made it, pods wait for it. See kubectl get deviceclasses"}
	}
	for name, tt := range map[string]struct {
		devices string
		want    []string
	}{
		"nothing":               {"", nil},
		"ours":                  {"requests: [" + request("gpu.cleave.dev") + "], " + config("gpu.cleave.dev"), nil},
		"a typo":                {"requests: [" + request("mig-1g.10g.cleave.dev") + "]", unknown("mig-1g.10g.cleave.dev")},
		"an alternative's typo": {"requests: [" + request("gpu.cleave.dev") + ", {name: s, firstAvailable: [{name: a, deviceClassName: gpus.cleave.dev}, {name: b, deviceClassName: mp.cleave.dev}]}]", unknown("gpus.cleave.dev, mp.cleave.dev")},
		"an imported class":     {"requests: [" + request("gpu.shared.device-plugin.cleave.dev") + ", " + request("gpu.mig-parted.cleave.dev") + "]", nil},
		"capacities":            {"requests: [{name: r, exactly: {deviceClassName: mps.cleave.dev, capacity: {requests: {cores: 10, memory: 1Gi, shares: 1}}}}, {name: s, exactly: {deviceClassName: nic.example.com, capacity: {requests: {bandwidth: 1}}}}]", nil},
		"misspelled capacities": {"requests: [{name: r, exactly: {deviceClassName: mps.cleave.dev, capacity: {requests: {core: 10}}}}, {name: s, firstAvailable: [{name: a, deviceClassName: timeslice.cleave.dev, capacity: {requests: {gpu.cleave.dev/mem: 1}}}]}]",
			[]string{"no device of Cleave has capacity core, gpu.cleave.dev/mem: pods wait for one that has. There are memory, cores and shares"}},
		"a capacity with its domain": {"requests: [{name: r, exactly: {deviceClassName: mps.cleave.dev, capacity: {requests: {gpu.cleave.dev/memory: 1Gi}}}}]",
			[]string{"no device of Cleave has capacity gpu.cleave.dev/memory: pods wait for one that has. There are memory, cores and shares"}},
		"memory without a unit": {"requests: [{name: r, exactly: {deviceClassName: mps.cleave.dev, capacity: {requests: {memory: 10}}}}, {name: s, firstAvailable: [{name: a, deviceClassName: timeslice.cleave.dev, capacity: {requests: {memory: 1500m}}}]}]",
			[]string{"memory 10, 1500m is in bytes, less than any device has: write a unit, such as Gi"}},
		"another's memory": {"requests: [{name: r, exactly: {deviceClassName: nic.example.com, capacity: {requests: {memory: 10}}}}]", nil},
		"another's class":  {"requests: [" + request("gpu.example.com") + "], " + config("example.com"), nil},
		"another driver":   {"requests: [" + request("mps.cleave.dev") + "], " + config("gpu.nvidia.com"), []string{"parameters for driver gpu.nvidia.com are ignored: all requests that they are for are of classes of Cleave. Name driver gpu.cleave.dev"}},
		"another driver, by name": {"requests: [" + request("mps.cleave.dev") + ", {name: nic, exactly: {deviceClassName: nic.example.com}}], config: [{requests: [r], opaque: {driver: nic.example.com, parameters: {a: b}}}]",
			[]string{"parameters for driver nic.example.com are ignored: all requests that they are for are of classes of Cleave. Name driver gpu.cleave.dev"}},
		"an alternative's, by name": {"requests: [{name: s, firstAvailable: [{name: a, deviceClassName: timeslice.cleave.dev}]}, {name: nic, exactly: {deviceClassName: nic.example.com}}], config: [{requests: [s/a], opaque: {driver: nic.example.com, parameters: {a: b}}}]",
			[]string{"parameters for driver nic.example.com are ignored: all requests that they are for are of classes of Cleave. Name driver gpu.cleave.dev"}},
		"the card's, by name": {"requests: [" + request("mps.cleave.dev") + ", {name: nic, exactly: {deviceClassName: nic.example.com}}], config: [{requests: [nic], opaque: {driver: nic.example.com, parameters: {a: b}}}]", nil},
		"a third of two":      {"requests: [" + request("mps.cleave.dev") + ", {name: nic, exactly: {deviceClassName: nic.example.com}}], " + config("gpu.example.com"), nil},
		"beside a card":       {"requests: [" + request("mps.cleave.dev") + ", " + request("nic.example.com") + "], " + config("nic.example.com"), nil},
	} {
		for _, object := range of(tt.devices) {
			if diff := cmp.Diff(tt.want, said(t, policy, object, "")); diff != "" {
				t.Errorf("%s (-want +got):\n%s\nof %s", name, diff, object)
			}
		}
	}
	for _, c := range nodeslices.Capacities() { // which the policy repeats
		if got := said(t, policy, of("requests: [{name: r, exactly: {deviceClassName: mps.cleave.dev, capacity: {requests: {" + c.Name + ": 1Gi}}}}]")[0], ""); got != nil {
			t.Errorf("capacity %s: %q", c.Name, got)
		}
	}
	classes, err := manifests.Classes()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range classes {
		if got := said(t, policy, of("requests: [" + request(c.Name) + "]")[0], ""); got != nil {
			t.Errorf("class %s: %q", c.Name, got)
		}
	}
	var requests []string
	for range 32 {
		requests = append(requests, "{name: r, firstAvailable: ["+strings.Repeat("{name: a, deviceClassName: mig-9g.9gb.cleave.dev}, ", 8)+"]}")
	}
	if got := said(t, policy, of("requests: [" + strings.Join(requests, ", ") + "], config: [" + strings.Repeat("{opaque: {driver: example.com}}, ", 32) + "]")[0], ""); len(got) != 1 {
		t.Errorf("the largest claim: %q", got)
	}
}

// It is failRequestsGreaterThanOne, as cleave import writes it.
func TestPolicy_SingleShares(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "migrate", "testdata", "device-plugin-shared.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	imported, err := migrate.DevicePlugin(data, migrate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := imported.WriteAdmission(&out); err != nil {
		t.Fatal(err)
	}
	document, _, _ := strings.Cut(out.String(), "---\n")
	policy := compiled(t, document)
	for limits, refused := range map[string]bool{
		"nvidia.com/gpu.shared: 1": false, "nvidia.com/gpu.shared: '1'": false, "nvidia.com/gpu.shared: 2": true, "nvidia.com/gpu: 2": false, "cpu: 2": false, "": false,
	} {
		for _, spec := range []string{"{containers: [{name: a, resources: {limits: {" + limits + "}}}]}", "{containers: [{name: a}], initContainers: [{name: i, resources: {limits: {" + limits + "}}}]}"} {
			if got := said(t, policy, workload("v1 Pod", spec), ""); len(got) > 0 != refused {
				t.Errorf("%s: %q, want refused: %t", spec, got, refused)
			}
		}
	}
}
