// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

const policyHead = "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\n"

// policyValues are values with one policy named p, as YAML below its name or as text.
func policyValues(t *testing.T, body string, asText bool) string {
	t.Helper()
	p := any(policyHead + body)
	if !asText {
		var object map[string]any
		must(t, yaml.Unmarshal([]byte(body), &object))
		p = object
	}
	data, err := yaml.Marshal(map[string]any{"policies": map[string]any{"p": p}})
	must(t, err)
	return string(data)
}

// TestPolicies_Typo holds what the chart refuses against the plugin's decoder, which has to refuse it, too.
func TestPolicies_Typo(t *testing.T) {
	for body, want := range map[string]string{
		"rulez: []":                                               "rulez: unknown field",
		"rules: {}":                                               "rules: must be array, not object",
		"rules: [~]":                                              "rules[0]: is empty",
		"rules: [{tires: [mig]}]":                                 "rules[0].tires: unknown field: there are exclude, health, match, mig, mps, pauseClients, publish, tiers, timeSlice",
		"rules: [{tiers: [mig, timeslice]}]":                      `rules[0].tiers[1]: must be one of exclusive, mig, timeSlice, mps, not "timeslice"`,
		"rules: [{exclude: maybe}]":                               `rules[0].exclude: must be boolean, not string "maybe"`,
		"rules: [{timeSlice: {share: 4}}]":                        "rules[0].timeSlice.share: unknown field: there are interval, memory, placement, shares",
		"rules: [{timeSlice: {shares: 1001}}]":                    "rules[0].timeSlice.shares: must be 1 to 1000, not 1001",
		"rules: [{timeSlice: {shares: 1.5}}]":                     "rules[0].timeSlice.shares: must be integer",
		"rules: [{timeSlice: {interval: Longest}}]":               "rules[0].timeSlice.interval: must be one of",
		"rules: [{timeSlice: {memory: {minimum: 1GB}}}]":          `rules[0].timeSlice.memory.minimum: must be a quantity such as 512Mi, not "1GB"`,
		"rules: [{mps: {shares: 61}}]":                            "rules[0].mps.shares: must be 1 to 60",
		"rules: [{mps: {cores: {step: 0}}}]":                      "rules[0].mps.cores.step: must be 1 to 100",
		"rules: [{mps: {priority: High}}]":                        "rules[0].mps.priority: must be one of",
		"rules: [{mig: {mode: ondemand}}]":                        "rules[0].mig.mode: must be one of onDemand, layout, existing",
		"rules: [{mig: {profiles: [1g]}}]":                        "rules[0].mig.profiles[0]: must be a MIG profile",
		"rules: [{mig: {layout: {1g.10gb: 0}}}]":                  "rules[0].mig.layout.1g.10gb: must be 1 or more",
		"rules: [{mig: {layout: {small: 1}}}]":                    `rules[0].mig.layout: must be a MIG profile, such as 1g.10gb or 1g.10gb+me, not "small"`,
		"rules: [{health: {reaction: Evict}}]":                    "rules[0].health.reaction: must be one of None, NoSchedule, NoExecute",
		"rules: [{health: {ignoreXIDs: [-1]}}]":                   "rules[0].health.ignoreXIDs[0]: must be 0 or more",
		"rules: [{match: {indexes: ['0']}}]":                      "rules[0].match.indexes[0]: must be integer, not string",
		"rules: [{match: {uuids: [MIG-1]}}]":                      "rules[0].match.uuids[0]: must be the UUID of a GPU",
		"rules: [{match: {pciAddresses: ['1b:00.0']}}]":           "rules[0].match.pciAddresses[0]: must be a PCI address",
		"rules: [{match: {deviceIDs: ['0x2330']}}]":               "rules[0].match.deviceIDs[0]: must be a PCI device ID",
		"rules: [{match: {productNames: ['']}}]":                  "rules[0].match.productNames[0]: must be a product",
		"rules: [{match: {memory: {min: lots}}}]":                 "rules[0].match.memory.min: must be a quantity",
		"metadata: {name: Training}\nrules: []":                   `metadata.name: must be the value of a node label`,
		"rules: [" + strings.Repeat("{exclude: true},", 65) + "]": "rules: has 65 entries, more than 64",
	} {
		t.Run(body[:min(60, len(body))], func(t *testing.T) {
			t.Parallel()
			if _, err := v1alpha1.DecodeNodePolicy([]byte(policyHead + body)); err == nil {
				t.Error("the plugin takes it")
			}
			for _, asText := range []bool{false, true} {
				if _, err := render(t, policyValues(t, body, asText)); err == nil || !strings.Contains(err.Error(), "policies.p: "+want) {
					t.Errorf("as text %t: got %v, want an error that says %q", asText, err, "policies.p: "+want)
				}
			}
		})
	}
}

func TestPolicies_NotAPolicy(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "there is no policy in the text",
		"# a comment\n":                      "there is no policy in the text",
		"rules: []\n":                        "apiVersion: is not set",
		"apiVersion: v1\nkind: NodePolicy\n": "apiVersion: must be gpu.cleave.dev/v1alpha1",
		"kind: [\n":                          "YAML",
		policyHead + "---\n" + policyHead + "metadata: {name: b}\nfoo: 1\n": "foo: unknown field",
	} {
		values, err := yaml.Marshal(map[string]any{"policies": map[string]any{"p": text}})
		must(t, err)
		if _, err := render(t, string(values)); err == nil || !strings.Contains(err.Error(), "policies.p: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error that says %q", text, err, want)
		}
	}
}

// everyField is a policy with every field there is.
const everyField = `
metadata: {name: p}
rules:
- match:
    productNames: ["NVIDIA H100 80GB HBM3"]
    uuids: [GPU-1]
    pciAddresses: ["0000:1b:00.0", "00000000:1C:00.0"]
    indexes: [0, 7]
    deviceIDs: ["0x233010DE"]
    memory: {min: 70Gi, max: 100000000000}
  tiers: [mig, timeSlice, mps]
  mig: {mode: onDemand, profiles: [1g.10gb, 1g.10gb+me], disableWhenIdle: true}
  timeSlice: {shares: 1000, memory: {minimum: 2Gi, step: 0.5Gi, default: 3Gi}, interval: Long}
  mps: {shares: 60, memory: {minimum: 1Mi, step: 1Mi, default: 5Mi}, cores: {minimum: 5, step: 100, default: 5}, sharedMemory: 4Gi, priority: BelowNormal}
  health: {reaction: NoExecute, ignoreXIDs: [94]}
- match: {indexes: [1]}
  mig: {layout: {1g.10gb: 2, 3g.40gb: 1}}
- match: {indexes: [3]}
  exclude: true
- tiers:
`

func TestPolicies_Valid(t *testing.T) {
	bodies := map[string]string{"every field": everyField, "no rules": "rules: []", "an empty rule": "rules: [{}]"}
	files, err := filepath.Glob("../../deployments/examples/policies/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		data := readFile(t, file)
		bodies[file] = string(data)
	}
	for name, body := range bodies {
		for _, asText := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, as text %t", filepath.Base(name), asText), func(t *testing.T) {
				t.Parallel()
				text := policyHead + body
				if strings.Contains(body, "apiVersion:") {
					text = body
				}
				if _, err := v1alpha1.DecodeNodePolicy([]byte(text)); err != nil {
					t.Fatalf("the plugin refuses it: %v", err)
				}
				body = strings.NewReplacer("apiVersion: gpu.cleave.dev/v1alpha1\n", "", "kind: NodePolicy\n", "").Replace(body)
				objects, err := render(t, policyValues(t, body, asText))
				must(t, err)
				data := typed[corev1.ConfigMap](t, objects, "ConfigMap", "cleave-policies").Data
				set := policy.NewSet()
				if problems := set.AddFile("p.yaml", []byte(data["p.yaml"]), policy.Format{}, "p"); len(problems) > 0 {
					t.Errorf("the plugin refuses what the chart makes of it: %v in\n%s", problems, data["p.yaml"])
				}
			})
		}
	}
}

// The chart passes labels only where they differ from the default.
func TestRender_PolicyLabels(t *testing.T) {
	for values, want := range map[string]string{
		"": "", "policyLabels: [gpu.cleave.dev/policy]": "",
		"policyLabels: [gpu.cleave.dev/policy, nvidia.com/mig.config]": "--policy-labels=gpu.cleave.dev/policy,nvidia.com/mig.config",
	} {
		args := podOfSet(t, mustRender(t, values), "cleave-plugin").Containers[0].Args
		args = slices.DeleteFunc(args, func(a string) bool { return !strings.HasPrefix(a, "--policy-labels") })
		if got := strings.Join(args, " "); got != want {
			t.Errorf("%s: got %q, want %q", values, got, want)
		}
	}
}
