// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/tools/explain"
)

// explained is the outcome of cleave explain -f.
func explained(t *testing.T, a *asker, text, format string) (outcome, error) {
	t.Helper()
	f := &explainFlags{format: format, file: "f.yaml"}
	if err := a.read("-", strings.NewReader(text)); err != nil {
		return outcome{}, err
	}
	var stdout, stderr bytes.Buffer
	err := f.explainFile(t.Context(), a, &stdout, &stderr)
	return outcome{stdout: stdout.String(), stderr: stderr.String()}, err
}

// All examples, as they are, by both.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob(examples + "/*.yaml")
	if err != nil || len(files) != 17 {
		t.Fatalf("got %d examples, %v", len(files), err)
	}
	objects := slices.Concat(classes(t), published(t, "hgx-h100", "plain", everyTier), published(t, "hgx-h100", "shared", sharedPartitions(t)))
	client := cluster(t, objects...)
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := explained(t, &asker{client: client, namespace: "team", driver: "gpu.cleave.dev"}, string(data), "text")
			pods := strings.Count(string(data), "kind: Pod\n")
			if foreign := name == "topology-gpu-and-nic.yaml"; foreign != (err != nil) || foreign && !strings.Contains(got.stdout, "DeviceClass nic.example.com does not exist") {
				t.Errorf("explain: %v\n%s", err, got.stdout)
			} else if !foreign && strings.Count(got.stdout, " fits:\n") != pods {
				t.Errorf("explain, want %d that fit:\n%s", pods, got.stdout)
			}
			if passed := got.stderr; name == "quota.yaml" && passed != "cleave: f.yaml: nothing to explain: passed over: Namespace, ResourceQuota\n" || name != "quota.yaml" && passed != "" {
				t.Errorf("explain passes over: %s", passed)
			}
			onNode := []string{"-f", file, "--node-model", "hgx-h100"}
			if name == "mig-mps-services.yaml" {
				onNode = append(onNode, "-f", policies, "--policy-name", "shared-partitions")
			}
			for _, args := range [][]string{{"-f", file}, onNode} {
				want := file + ": ok: "
				if name == "quota.yaml" {
					want = file + ": nothing to check: passed over: Namespace, ResourceQuota"
				}
				checked := cleave(t, append([]string{"validate"}, args...)...)
				if checked.code != cli.ExitOK || !strings.Contains(checked.stdout, want) || strings.Contains(checked.stdout, "passed over: Pod") {
					t.Errorf("validate %v: %d, %s%s", args, checked.code, checked.stdout, checked.stderr)
				}
			}
		})
	}
	if got := cleave(t, "validate", "-f", "../../../deployments/manifests", "--node-model", "hgx-h100"); got.code != cli.ExitOK {
		t.Errorf("validate of the manifests: %d, %s%s", got.code, got.stdout, got.stderr)
	}
}

const (
	template = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {name: t}\nspec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.cleave.dev}}]}}}\n---\n"
	spec     = "{containers: [{name: main, resources: {claims: [{name: gpu}]}}], resourceClaims: [{name: gpu, resourceClaimTemplateName: t}]}"
)

// What people have.
func TestExplain_File(t *testing.T) {
	const resource = "example.com/gpu"
	selects := func(name, expression string) *resourceapi.DeviceClass {
		return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{ExtendedResourceName: new(resource),
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}}}
	}
	old, newer := selects("old.example.com", "false"), selects("newer.example.com", "false")
	old.CreationTimestamp, newer.CreationTimestamp = metav1.NewTime(time.Now().Add(-2*time.Hour)), metav1.NewTime(time.Now().Add(-time.Hour))
	client := cluster(t, append(classes(t), old, newer)...)
	served := func(by string) string {
		return "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: " + by + "}\nspec: {extendedResourceName: " + resource + ", selectors: [{cel: {expression: 'device.driver == \"gpu.cleave.dev\" && device.attributes[\"gpu.cleave.dev\"].type == \"gpu\"'}}]}\n" +
			"---\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, resources: {limits: {" + resource + ": 1}}}]}\n"
	}
	deployment := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: 2, template: {spec: " + spec + "}}\n"
	tests := map[string]struct {
		text, stderr, err string
		stdout            []string
	}{
		"a Deployment": {text: template + deployment, stdout: []string{"Deployment ml/d fits:\n  claim ml/gpu, request gpu: 1 of class gpu.cleave.dev\n"}},
		"of another namespace": {text: strings.Replace(template, "name: t}", "name: t, namespace: team}", 1) + deployment, err: "Deployment ml/d fits no node",
			stdout: []string{"ResourceClaimTemplate t does not exist in the pod's namespace", "ResourceClaimTemplate team/t fits:"}},
		"several pods": {text: template + "apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: r, namespace: team}\nspec: {headGroupSpec: {template: {spec: {containers: [{name: a}]}}}, workerGroupSpecs: [{template: {spec: " + spec + "}}, {template: {spec: {containers: [{name: b, resources: {limits: {nvidia.com/gpu: 9}}}]}}}]}\n",
			err:    "RayCluster team/r (spec.workerGroupSpecs[0].template.spec), RayCluster team/r (spec.workerGroupSpecs[1].template.spec) fits no node",
			stdout: []string{"request b-gpu: 9", "9 devices requested"}},
		"a node by name": {text: template + strings.Replace(deployment, "containers", "nodeName: node-1, containers", 1), err: "Deployment ml/d fits no node",
			stdout: []string{"Deployment ml/d cannot be scheduled:", "- claim ml/gpu has no devices: the pod was given its node without them, as by spec.nodeName\n"}},
		"a resource on a node by name": {text: "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {nodeName: node-1, containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}\n", err: "Pod ml/p fits no node",
			stdout: []string{"Pod ml/p cannot be scheduled:", "- claim ml/p-extended-resources has no devices"}},
		"a typo": {text: "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, resources: {limits: {nvidia.com/mig-1g.10g: 1}}}]}\n", err: "Pod ml/p fits no node",
			stdout: []string{"no DeviceClass serves the extended resource nvidia.com/mig-1g.10g"}},
		"a class that is newer than those of the cluster": {text: served("newest.example.com"), stdout: []string{"Pod ml/p fits:\n  claim ml/p-extended-resources, request a-gpu: 1 of class newest.example.com\n"}},
		"a class in place of one of the cluster":          {text: served("newer.example.com"), stdout: []string{"Pod ml/p fits:\n  claim ml/p-extended-resources, request a-gpu: 1 of class newer.example.com\n"}},
		"a class in place of an older one":                {text: served("old.example.com"), err: "Pod ml/p fits no node", stdout: []string{"request a-gpu: 1 of class newer.example.com\n"}},
		"no container uses the claim": {text: template + "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a}], resourceClaims: [{name: gpu, resourceClaimTemplateName: t}]}\n",
			stdout: []string{"Pod ml/p fits:", "No container names claim \"gpu\": its devices are allocated, and no container gets them."}},
		"other kinds":       {text: template + deployment + "---\napiVersion: v1\nkind: Service\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: cpu}\nspec: {containers: [{name: a}]}\n", stdout: []string{"Deployment ml/d fits:"}, stderr: "cleave: f.yaml: passed over: Service, Pod\n"},
		"other kinds alone": {text: "apiVersion: v1\nkind: Service\n", stderr: "cleave: f.yaml: nothing to explain: passed over: Service\n"},
		"a List":            {text: "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}}]\n", stdout: []string{"Pod ml/p fits:"}},
		"nothing":           {text: "# nothing\n", err: "f.yaml has no pod, claim or template"},
		"not an object":     {text: "a: b\n", err: "read -: document at line 1: it has no apiVersion or no kind: it is no Kubernetes object"},
		"refused":           {text: "---\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, resources: {claims: [{name: gpu}]}}]}\n", err: "read -: document at line 1: Pod p: spec.containers[0].resources.claims[0]: Not found: \"gpu\""},
		"a List in a List":  {text: "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: List}]\n", err: "List: a List has another one"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := explained(t, &asker{client: client, namespace: "ml", driver: "gpu.cleave.dev"}, tt.text, "text")
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) || got.stderr != tt.stderr {
				t.Errorf("got %v, stderr %q; want %q, %q", err, got.stderr, tt.err, tt.stderr)
			}
			for _, want := range tt.stdout {
				if !strings.Contains(got.stdout, want) {
					t.Errorf("%q is not in\n%s", want, got.stdout)
				}
			}
		})
	}
	got, err := explained(t, &asker{client: client, namespace: "ml", driver: "gpu.cleave.dev"}, template+deployment+"---\napiVersion: v1\nkind: Service\n", "json")
	var list []explain.Explanation
	if err := json.Unmarshal([]byte(got.stdout), &list); err != nil || len(list) != 1 || list[0].Subject != "Deployment ml/d" {
		t.Errorf("as JSON: got %v, %v", list, err)
	}
	if diff := cmp.Diff("cleave: f.yaml: passed over: Service\n", got.stderr); diff != "" || err != nil {
		t.Errorf("as JSON: %v, stderr (-want +got):\n%s", err, diff)
	}
}
