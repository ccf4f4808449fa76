// SPDX-License-Identifier: Apache-2.0

package shortform

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/pkg/tools/admission"
)

// Whatever is typed gives an error that can be printed in a line, or a template that the webhook takes and that has no more devices than a
// claim can.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"", ",", "4 gpus, 48 cpus, 4 nics, one numa node", "2 1g.10gb+me, memory ≥ 9gb", "mps, one nvlink domain", "\x00\xff", "memory >= 1e400",
		"memory >= 9223372036854775807Ei, gpu", "1 shared, memory >= 0.5gi", "gpu, one pcie root, one", "+ gpus", "--", "½ gpus", "4\u00a0gpus, memory\n>=1gi",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		form, err := Parse(text, profiles)
		if err != nil {
			if m := err.Error(); m == "" || !utf8.ValidString(m) || strings.ContainsFunc(m, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("error %q cannot be printed", m)
			}
			return
		}
		template := form.Template(standard)
		if errs := admission.DefaultRules().Check(template); len(errs) > 0 {
			t.Errorf("%q: %v", text, errs)
		}
		if msgs := validation.IsDNS1123Subdomain(template.Name); len(msgs) > 0 {
			t.Errorf("%q: name %q: %v", text, template.Name, msgs)
		}
		results := int64(0)
		for _, r := range template.Spec.Spec.Devices.Requests {
			results += r.Exactly.Count
		}
		if results < 1 || results > resourceapi.AllocationResultsMaxSize {
			t.Errorf("%q: %d devices", text, results)
		}
		data, err := yaml.Marshal(template)
		if err == nil {
			err = yaml.UnmarshalStrict(data, &resourceapi.ResourceClaimTemplate{})
		}
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
	})
}
