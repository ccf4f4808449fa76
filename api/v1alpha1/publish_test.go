// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestValidate_Publish(t *testing.T) {
	tests := map[string]struct {
		rule string
		want []string // prefixes of the problems
	}{
		"all fields":           {`publish: {attributes: [giProfileID], omitAttributes: [resource.kubernetes.io/pcieRoot], omitProfiles: [+me, 1g.20gb], counters: [memory, multiprocessors]}`, nil},
		"empty":                {`publish: {}`, nil},
		"a field that is none": {`publish: {attribute: [index]}`, []string{`unknown field "rules[0].publish.attribute"`}},
		"attributes that are none": {`publish: {attributes: [uuid], omitAttributes: [placementSize, type]}`, []string{
			`rules[0].publish.attributes[0]: Unsupported value: "uuid"`, `rules[0].publish.omitAttributes[0]: Unsupported value: "placementSize"`,
			`rules[0].publish.omitAttributes[1]: Unsupported value: "type"`,
		}},
		"twice": {`publish: {attributes: [index, index], omitProfiles: [+me, +me]}`, []string{
			`rules[0].publish.attributes[1]: Duplicate value: "index"`, `rules[0].publish.omitProfiles[1]: Duplicate value: "+me"`,
		}},
		"in both": {`publish: {attributes: [index], omitAttributes: [index]}`, []string{
			`rules[0].publish.omitAttributes[0]: Invalid value: "index": is in attributes, too`,
		}},
		"counters that are none": {`publish: {counters: [slices]}`, []string{`rules[0].publish.counters[0]: Unsupported value: "slices"`}},
		"no profile":             {`publish: {omitProfiles: [+gfx]}`, []string{`rules[0].publish.omitProfiles[0]: Invalid value: "+gfx"`}},
		"not offered anyway": {`publish: {omitProfiles: [1g.24gb-me, 1g.24gb]}`, []string{
			`rules[0].publish.omitProfiles[0]: Invalid value: "1g.24gb-me": is offered only if mig.profiles names it: remove it`,
		}},
		"profiles, twice": {`mig: {profiles: [1g.10gb]}, publish: {omitProfiles: [+me]}`, []string{
			`rules[0].publish.omitProfiles: Forbidden: mig.profiles says which profiles there are`,
		}},
		"a layout": {`mig: {layout: {1g.10gb: 7}}, publish: {omitProfiles: [+me]}`, []string{
			`rules[0].publish.omitProfiles: Forbidden: it is for mode onDemand, and the mode is layout`,
		}},
		"excluded": {`exclude: true, publish: {counters: [memory]}`, []string{`rules[0].publish: Forbidden: the rule excludes its GPUs`}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := problemsOf(t, "rules: [{"+tt.rule+"}]")
			for i := range min(len(got), len(tt.want)) {
				if strings.HasPrefix(got[i], tt.want[i]) {
					got[i] = tt.want[i]
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}
