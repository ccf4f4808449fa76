// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/pkg/admission"
	"github.com/cleave-dra/cleave/pkg/validation"
)

// validateAsServer creates the objects that the tests of pkg/validation have, as kubectl does, and compares the answers of
// the API server and of cleave validate.
func validateAsServer(t *testing.T, ctx context.Context) {
	data := readFile(t, filepath.Join(source, "pkg", "validation", "testdata", "objects.yaml"))
	resources := map[string]string{"ResourceClaim": "resourceclaims", "ResourceClaimTemplate": "resourceclaimtemplates", "DeviceClass": "deviceclasses"}
	for _, document := range strings.Split(string(data), "---\n")[1:] {
		var meta metav1.PartialObjectMetadata
		must(t, yaml.Unmarshal([]byte(document), &meta))
		body, err := yaml.YAMLToJSON([]byte(document))
		must(t, err)
		server := env.kube.ResourceV1().RESTClient().Post().NamespaceIfScoped(demo, meta.Kind != "DeviceClass").Resource(resources[meta.Kind]).
			Param("dryRun", "All").Param("fieldValidation", "Strict").SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
		files, err := validation.Files(ctx, []string{"-"}, validation.Options{Rules: admission.DefaultRules(), Stdin: bytes.NewBufferString(document)})
		must(t, err)
		problems := files[0].Problems
		if ok := strings.HasPrefix(meta.Name, "ok-"); ok != (server == nil) || ok != (len(problems) == 0) {
			t.Errorf("%s %s: the API server says %v, cleave validate %q", meta.Kind, meta.Name, server, problems)
		}
	}
}
