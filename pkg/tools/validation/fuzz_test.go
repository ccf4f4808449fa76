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
		decoded, err := Decode(data)
		if err != nil {
			return
		}
		var questions []*explain.Question
		for _, object := range decoded {
			switch object := object.(type) {
			case *resourceapi.ResourceClaim:
				questions = append(questions, explain.AboutClaim(object))
			case *resourceapi.ResourceClaimTemplate:
				questions = append(questions, explain.AboutTemplate(object))
			}
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
