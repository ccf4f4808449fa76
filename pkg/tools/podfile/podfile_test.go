// SPDX-License-Identifier: Apache-2.0

package podfile

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

const podSpec = `{containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]}`

// raw is YAML as JSON.
func raw(t testing.TB, text string) []byte {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Pods are found wherever an object has them.
func TestIn(t *testing.T) {
	of := func(kind, spec string) string {
		group, name, _ := strings.Cut(kind, " ")
		return fmt.Sprintf("{apiVersion: %s, kind: %s, metadata: {name: x, namespace: team}, spec: %s}", group, name, spec)
	}
	template := "{metadata: {labels: {a: b}}, spec: " + podSpec + "}"
	const inlined = `minReplicas: 1, resourceClaims: [{name: gpu, resourceClaimTemplateName: t}]`
	const model = `model: {modelFormat: {name: huggingface}, storageUri: "hf://a/b", resources: {limits: {nvidia.com/gpu: 1}}}`
	tests := map[string]struct {
		object string
		want   []string
	}{
		"a Pod":         {of("v1 Pod", podSpec), []string{"spec"}},
		"a Deployment":  {of("apps/v1 Deployment", "{template: "+template+"}"), []string{"spec.template.spec"}},
		"a StatefulSet": {of("apps/v1 StatefulSet", "{template: "+template+"}"), []string{"spec.template.spec"}},
		"a DaemonSet":   {of("apps/v1 DaemonSet", "{template: "+template+"}"), []string{"spec.template.spec"}},
		"a Job":         {of("batch/v1 Job", "{template: "+template+"}"), []string{"spec.template.spec"}},
		"a CronJob":     {of("batch/v1 CronJob", "{jobTemplate: {spec: {template: "+template+"}}}"), []string{"spec.jobTemplate.spec.template.spec"}},
		"a Notebook":    {of("kubeflow.org/v1 Notebook", "{template: "+template+"}"), []string{"spec.template.spec"}},
		"a LeaderWorkerSet": {of("leaderworkerset.x-k8s.io/v1 LeaderWorkerSet", "{leaderWorkerTemplate: {size: 2, leaderTemplate: "+template+", workerTemplate: "+template+"}}"),
			[]string{"spec.leaderWorkerTemplate.leaderTemplate.spec", "spec.leaderWorkerTemplate.workerTemplate.spec"}},
		"a RayCluster": {of("ray.io/v1 RayCluster", "{headGroupSpec: {template: "+template+"}, workerGroupSpecs: [{groupName: a, template: "+template+"}, {groupName: b, template: "+template+"}]}"),
			[]string{"spec.headGroupSpec.template.spec", "spec.workerGroupSpecs[0].template.spec", "spec.workerGroupSpecs[1].template.spec"}},
		"a JobSet": {of("jobset.x-k8s.io/v1alpha2 JobSet", "{replicatedJobs: [{name: a, template: {spec: {template: "+template+"}}}]}"),
			[]string{"spec.replicatedJobs[0].template.spec.template.spec"}},
		"a PodTemplate":                 {"{apiVersion: v1, kind: PodTemplate, metadata: {name: x, namespace: team}, template: " + template + "}", []string{"template.spec"}},
		"an InferenceService of KServe": {of("serving.kserve.io/v1beta1 InferenceService", "{predictor: {"+model+", "+inlined+"}}"), []string{"spec.predictor"}},
		"with containers of its own": {of("serving.kserve.io/v1beta1 InferenceService", "{predictor: {"+inlined+", containers: [{name: kserve-container, resources: {limits: {nvidia.com/gpu: 1}}}]}, transformer: {containers: [{name: t}]}}"),
			[]string{"spec.predictor"}},
		"with workers": {of("serving.kserve.io/v1beta1 InferenceService", "{predictor: {"+model+", "+inlined+", workerSpec: {"+inlined+", containers: [{name: worker, resources: {limits: {nvidia.com/gpu: 1}}}]}}}"),
			[]string{"spec.predictor", "spec.predictor.workerSpec"}},
		"an LLMInferenceService":                         {of("serving.kserve.io/v1alpha1 LLMInferenceService", "{template: {"+inlined+", containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]}}"), []string{"spec.template"}},
		"a group of pods, whose claims no container has": {of("scheduling.k8s.io/v1beta1 PodGroup", "{resourceClaims: [{name: gpu, resourceClaimName: c}], schedulingPolicy: {gang: {minCount: 2}}}"), nil},
		// A Prometheus has patches of containers there, which are no pod.
		"containers of another kind": {of("monitoring.coreos.com/v1 Prometheus", podSpec), nil},
		"a schema":                   {of("apiextensions.k8s.io/v1 CustomResourceDefinition", "{template: {spec: {containers: {type: array}}}}"), nil},
		"containers without a name":  {of("example.com/v1 Any", "{template: {spec: {containers: [{image: a}]}}}"), nil},
		"a quota":                    {of("v1 ResourceQuota", "{hard: {a: 1}}"), nil},
		"too deep":                   {of("example.com/v1 Any", strings.Repeat("{a: ", 40)+template+strings.Repeat("}", 40)), nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			pods, err := In(raw(t, tt.object))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range pods {
				got = append(got, p.Path.String())
				if request := p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"]; request.Value() != 1 || !Asks(&p.Spec) {
					t.Errorf("%s requests %s by default", p.Path, request.String())
				}
				if p.Name != "x" || p.Namespace != "team" {
					t.Errorf("%s is of %s/%s", p.Path, p.Namespace, p.Name)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("pods (-want +got):\n%s", diff)
			}
		})
	}
}

func TestIn_Wrong(t *testing.T) {
	many := "{apiVersion: v1, kind: Any, spec: [" + strings.Repeat("{spec: "+podSpec+"}, ", maxTemplates+1) + "]}"
	for name, tt := range map[string]struct{ object, want string }{
		"an inlined spec": {"{apiVersion: example.com/v1, kind: Any, spec: {containers: [{name: a}], resourceClaims: [{name: gpu}], hostNetwork: 7}}", "spec: json: cannot unmarshal"},
		"no object":       {"[]", "cannot unmarshal array"},
		"a type":          {"{apiVersion: v1, kind: Pod, spec: {containers: text}}", "cannot unmarshal string into Go struct field"},
		"a template":      {"{apiVersion: apps/v1, kind: Deployment, spec: {template: {spec: {containers: [{name: a}], hostNetwork: 7}}}}", "spec.template: json: cannot unmarshal"},
		"many":            {many, "there are more than 64 pod templates"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := In(raw(t, tt.object)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	unknown := "{template: {spec: {containers: [{name: a}], resourceClaim: []}}}"
	for kind, want := range map[string]string{
		"apps/v1": `spec.template: unknown field "spec.resourceClaim"`, "example.com/v1": "",
	} {
		pods, err := In(raw(t, "{apiVersion: "+kind+", kind: Deployment, spec: "+unknown+"}"))
		if err != nil || len(pods) != 1 || (pods[0].Unknown == nil) != (want == "") || want != "" && pods[0].Unknown.Error() != want {
			t.Errorf("%s: got %v, %v; want %q", kind, pods, err, want)
		}
	}
}

// The API server refuses these.
func TestPod_Check(t *testing.T) {
	tests := map[string]struct {
		spec string
		want []string
	}{
		"right": {`{containers: [{name: a, resources: {claims: [{name: gpu, request: r}, {name: gpu, request: s}], limits: {cpu: 500m, nvidia.com/gpu: 1}, requests: {cpu: 100m}}}],
			resourceClaims: [{name: gpu, resourceClaimTemplateName: t}]}`, nil},
		"claims of the pod": {`{containers: [{name: a}], resourceClaims: [{name: gpu, resourceClaimName: a}, {name: gpu, resourceClaimName: a}, {resourceClaimName: a}, {name: b}, {name: c, resourceClaimName: a, resourceClaimTemplateName: b}]}`,
			[]string{"spec.resourceClaims[1].name: Duplicate value: \"gpu\"", "spec.resourceClaims[2].name: Required value: containers name the claim by it",
				"spec.resourceClaims[3]: Invalid value: \"b\": set either resourceClaimName or resourceClaimTemplateName", "spec.resourceClaims[4]: Invalid value: \"c\": set either resourceClaimName or resourceClaimTemplateName"}},
		"claims of a container": {`{initContainers: [{name: i, resources: {claims: [{name: gpus}]}}], containers: [{name: a, resources: {claims: [{name: gpu}, {name: gpu}, {name: gpu, request: r}]}}], resourceClaims: [{name: gpu, resourceClaimName: a}]}`,
			[]string{"spec.initContainers[0].resources.claims[0]: Not found: \"gpus\"", "spec.containers[0].resources.claims[1]: Duplicate value: \"gpu\"", "spec.containers[0].resources.claims[2]: Duplicate value: \"gpu\""}},
		"extended resources": {`{containers: [{name: a, resources: {limits: {nvidia.com/gpu: 2}, requests: {nvidia.com/gpu: 1}}}, {name: b, resources: {requests: {nvidia.com/gpu: 1}}}, {name: c, resources: {limits: {nvidia.com/gpu: 500m}}}, {name: d, resources: {limits: {nvidia.com/gpu: -1}}}]}`,
			[]string{"spec.containers[0].resources.requests[nvidia.com/gpu]: Invalid value: \"1\": must be equal to the limit", "spec.containers[1].resources.requests[nvidia.com/gpu]: Invalid value: \"1\": must be equal to the limit",
				"spec.containers[2].resources.requests[nvidia.com/gpu]: Invalid value: \"500m\": must be a whole number", "spec.containers[3].resources.requests[nvidia.com/gpu]: Invalid value: \"-1\": must be a whole number"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			pods, err := In(raw(t, "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: "+tt.spec+"}"))
			if err != nil || len(pods) != 1 {
				t.Fatal(pods, err)
			}
			var got []string
			for _, err := range pods[0].Check() {
				got = append(got, err.Error())
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
}

// Whatever an object is, its templates are found in an order of their own, or it is refused.
func FuzzIn(f *testing.F) {
	for _, text := range []string{
		"{}", "[]", "null", "{apiVersion: v1, kind: Pod}", "{apiVersion: v1, kind: Pod, spec: " + podSpec + "}",
		"{apiVersion: apps/v1, kind: Deployment, spec: {template: {spec: " + podSpec + "}}}", "{a: [{spec: " + podSpec + "}], b: {spec: {containers: [7]}}}",
		"{a: {spec: {containers: [{name: a, resources: {limits: {x/y: 1.5, z: -7}}}], resourceClaims: [{}]}}}",
		"{a: {spec: {containers: [{name: a, resources: {limits: {x/y: 1e999999999}}}]}}}",
	} {
		f.Add(raw(f, text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		pods, err := In(data)
		if err != nil {
			return
		}
		again, err := In(data)
		if err != nil || len(again) != len(pods) {
			t.Fatalf("got %d pods, then %d, %v", len(pods), len(again), err)
		}
		for i := range pods {
			if pods[i].Path.String() != again[i].Path.String() || !slices.Equal(texts(pods[i]), texts(again[i])) {
				t.Errorf("pod %d: got %s, then %s", i, pods[i].Path, again[i].Path)
			}
		}
	})
}

func texts(p Pod) []string {
	var all []string
	for _, err := range p.Check() {
		all = append(all, err.Error())
	}
	return all
}
