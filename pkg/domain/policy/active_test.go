// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

func decodePolicy(t *testing.T, text string) *v1alpha1.NodePolicy {
	t.Helper()
	p, err := v1alpha1.DecodeNodePolicy([]byte(head + text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestSelectActive(t *testing.T) {
	const inference, training = head + "rules: [{tiers: [mig]}]", head + "rules: [{tiers: [exclusive]}]"
	both := map[string]string{"inference.yaml": inference, "training.yaml": training}
	oneBroken := map[string]string{"inference.yaml": inference, "training.yaml": head + "rules: [{tires: [exclusive]}]"}
	tests := map[string]struct {
		was, label string
		files      map[string]string
		misfit     string // the policy that the check refuses
		want, err  string // the name of the active policy; what the error says, empty for none
	}{
		"the label picks the first one":        {"", "training", both, "", "training", ""},
		"the label picks another":              {"inference", "training", both, "", "training", ""},
		"the label goes":                       {"inference", "", both, "", BuiltIn, ""},
		"the label names one that is not":      {"inference", "trainning", both, "", "inference", `"trainning"`},
		"it never was there, and none is kept": {"", "trainning", both, "", "", `"trainning"`},
		"its file is broken":                   {"training", "training", oneBroken, "", "training", "tires"},
		"another's file is broken":             {"training", "inference", oneBroken, "", "inference", ""},
		"all files are broken":                 {"training", "training", map[string]string{"training.yaml": "\x00\x01"}, "", "training", "training.yaml"},
		"all files are broken at the start":    {"", "training", map[string]string{"training.yaml": "\x00\x01"}, "", "", "training.yaml"},
		"there are no files any more":          {"training", "training", nil, "", "training", "there is no file"},
		"it does not fit":                      {"inference", "training", both, "training", "inference", `policy "training" does not fit this node: too large`},
		"it does not fit at the start":         {"", "training", both, "training", "", "too large"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var was *Active
			if tt.was != "" {
				was = &Active{Name: tt.was, Policy: policyOf(t, "{tiers: [mps]}")}
			}
			set, loadErr := Load(directory(t, tt.files), Format{})
			got, err := SelectActive(was, set, loadErr, tt.label, func(p *v1alpha1.NodePolicy) error {
				if tt.misfit != "" && p.Metadata.Name == tt.misfit {
					return errors.New("too large")
				}
				return nil
			})
			var have string
			if got != nil {
				have = got.Name
			}
			if have != tt.want {
				t.Errorf("active: got %q, want %q", have, tt.want)
			}
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error: got %v, want one that says %q", err, tt.err)
			}
			if err != nil && got != was {
				t.Errorf("got %+v with an error, want %+v as it was", got, was)
			}
		})
	}
}

func TestSelectActive_NoFiles(t *testing.T) {
	set, loadErr := Load("", Format{})
	got, err := SelectActive(nil, set, loadErr, "", func(*v1alpha1.NodePolicy) error { return nil })
	if diff := cmp.Diff(&Active{Name: BuiltIn, Policy: &v1alpha1.NodePolicy{}}, got); diff != "" || err != nil {
		t.Errorf("error %v, active (-want +got):\n%s", err, diff)
	}
}
