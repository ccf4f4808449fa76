// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/e2e/resourcegen"
	"github.com/cleave-dra/cleave/pkg/tools/admission"
	"github.com/cleave-dra/cleave/pkg/tools/validation"
)

var resources = map[string]string{"ResourceClaim": "resourceclaims", "ResourceClaimTemplate": "resourceclaimtemplates", "DeviceClass": "deviceclasses"}

// verdicts are what the API server says of an object, as kubectl would create it, and what cleave validate finds in it.
func verdicts(t *testing.T, ctx context.Context, kind, namespace string, body []byte) (problems []string, server error) {
	t.Helper()
	server = env.kube.ResourceV1().RESTClient().Post().NamespaceIfScoped(namespace, kind != "DeviceClass").Resource(resources[kind]).
		Param("dryRun", "All").Param("fieldValidation", "Strict").SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
	files, err := validation.Files(ctx, []string{"-"}, validation.Options{Rules: admission.DefaultRules(), Stdin: bytes.NewReader(body)})
	must(t, err)
	return files[0].Problems, server
}

// validateAsServer compares the two for the objects that the tests of pkg/tools/validation have.
func validateAsServer(t *testing.T, ctx context.Context) {
	data := readFile(t, filepath.Join(source, "pkg", "tools", "validation", "testdata", "objects.yaml"))
	for _, document := range strings.Split(string(data), "---\n")[1:] {
		var meta metav1.PartialObjectMetadata
		must(t, yaml.Unmarshal([]byte(document), &meta))
		body, err := yaml.YAMLToJSON([]byte(document))
		must(t, err)
		problems, server := verdicts(t, ctx, meta.Kind, demo, body)
		if ok := strings.HasPrefix(meta.Name, "ok-"); ok != (server == nil) || ok != (len(problems) == 0) {
			t.Errorf("%s %s: the API server says %v, cleave validate %q", meta.Kind, meta.Name, server, problems)
		}
	}
}

// cleave validate says of objects in which any field may be anything what the API server says.
func TestValidate_RandomObjects(t *testing.T) {
	const objects, most, namespace = 3000, 10, "random-objects"
	ctx := tests.Bound(t, timeout)
	// Admin access is for pods of such namespaces alone, which a file does not show.
	_, err := env.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: namespace, Labels: map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"},
	}}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		must(t, env.kube.CoreV1().Namespaces().Delete(context.WithoutCancel(ctx), namespace, metav1.DeleteOptions{}))
	})
	admitted, differ := 0, 0
	for seed := range int64(objects) {
		object := resourcegen.Object(seed)
		body, err := json.Marshal(object)
		must(t, err)
		problems, server := verdicts(t, ctx, object.GetObjectKind().GroupVersionKind().Kind, namespace, body)
		if server == nil {
			admitted++
		}
		if (server == nil) == (len(problems) == 0) {
			continue
		}
		t.Errorf("object %d: the API server says %v, cleave validate %q, of\n%s", seed, server, problems, body)
		if differ++; differ == most {
			t.FailNow()
		}
	}
	if admitted < objects/4 || admitted > objects*3/4 {
		t.Errorf("%d of %d objects are admitted: such objects say little about either verdict", admitted, objects)
	}
}
