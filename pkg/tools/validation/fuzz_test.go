// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/deployments/manifests"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/admission"
	"github.com/cleave-dra/cleave/pkg/tools/explain"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
)

// Whatever is in a file, there is an answer: the allocator sees only what the API server admits.
func FuzzDecode(f *testing.F) {
	const head = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec: {devices: {"
	const request = `requests: [{name: gpu, exactly: {deviceClassName: gpu.cleave.dev`
	for _, devices := range []string{
		request + `}}]`, request + `, count: -1}}]`, request + `, count: 4611686018427387904}}]`, request + `, allocationMode: Some}}]`,
		`requests: [{name: gpu}]`, `requests: [{}]`, `requests: [{name: gpu, firstAvailable: [{}]}]`, `constraints: [{}]`,
		request + `}}], constraints: [{matchAttribute: x}]`, request + `}}], constraints: [{requests: [other], matchAttribute: gpu.cleave.dev/x}]`,
		request + `}}, {name: gpu, exactly: {deviceClassName: gpu.cleave.dev}}]`, request + `, selectors: [{}]}}]`,
		request + `, selectors: [{cel: {expression: "device.attributes['a'].b"}}]}}]`, request + `, capacity: {requests: {memory: -1}}}}]`,
		request + `, capacity: {requests: {"": 1Gi}}}}]`, request + `, tolerations: [{operator: Some}]}}]`, request + `, adminAccess: true}}]`,
		request + `}, firstAvailable: [{name: a, deviceClassName: mps.cleave.dev}]}]`, request + `}}], config: [{}]`,
	} {
		f.Add([]byte(head + devices + "}}\n"))
	}
	f.Add([]byte("apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: mine}\nspec: {selectors: [{}]}\n---\n" + head + "}}"))
	const template = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {name: t}\nspec: {spec: {devices: {" + request + "}}]}}}\n---\n"
	for _, spec := range []string{
		`containers: [{name: a, resources: {claims: [{name: gpu}]}}], resourceClaims: [{name: gpu, resourceClaimTemplateName: t}]`,
		`containers: [{name: a, resources: {claims: [{name: gpu, request: x}], limits: {nvidia.com/gpu: 9}}}], resourceClaims: [{name: gpu, resourceClaimName: t}]`,
		`initContainers: [{name: i, restartPolicy: Always, resources: {limits: {nvidia.com/mig-1g.10gb: 4611686018427387904}}}], containers: [{name: a, resources: {limits: {nvidia.com/gpu: 0.5}}}]`,
		`containers: [{name: a, resources: {limits: {deviceclass.resource.kubernetes.io/gpu.cleave.dev: 1, a/b: -1}}}], nodeName: x`,
	} {
		f.Add([]byte(template + "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {" + spec + "}\n"))
		f.Add([]byte(template + "apiVersion: v1\nkind: List\nitems: [{apiVersion: ray.io/v1, kind: RayCluster, spec: {headGroupSpec: {template: {spec: {" + spec + "}}}}}]\n"))
	}
	objects := explain.Objects{Driver: "gpu.cleave.dev", Nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}}}
	inventory, err := models.Load("hgx-h100")
	if err != nil {
		f.Fatal(err)
	}
	list := nodeslices.Objects(policy.Apply(&v1alpha1.NodePolicy{}, inventory, policy.Capabilities{}), objects.Driver, "node-1")
	if objects.Classes, err = manifests.Classes(); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		decoded, err := Decode(data, admission.DefaultRules())
		if err != nil {
			return
		}
		var questions []*explain.Question
		in := explain.Namespace{Claims: map[string]*resourceapi.ResourceClaim{}, Templates: map[string]*resourceapi.ResourceClaimTemplate{}}
		for _, claim := range decoded.Claims {
			in.Claims[claim.Name] = claim
			questions = append(questions, explain.AboutClaim(claim))
		}
		for _, template := range decoded.Templates {
			in.Templates[template.Name] = template
			questions = append(questions, explain.AboutTemplate(template))
		}
		for i := range decoded.Pods {
			questions = append(questions, explain.AboutPlanned("Pod", decoded.Pods[i].Pod.Pod, in, objects))
		}
		cluster := explain.NewCluster(objects, questions...)
		for i := range list.Items {
			cluster.AddSlice(&list.Items[i])
		}
		for _, q := range questions {
			if e, err := cluster.Explain(t.Context(), q); err != nil || e.State == "" {
				t.Errorf("got %v, %v", e, err)
			}
		}
	})
}
