// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// problemsOf are the problems of a policy with these rules.
func problemsOf(t *testing.T, body string) []string {
	t.Helper()
	p, err := DecodeNodePolicy([]byte(policyHead + body))
	if (p == nil) == (err == nil) {
		t.Errorf("got %v alongside error %v", p, err)
	}
	var texts []string
	for _, problem := range ProblemsOf(err) {
		checkText(t, problem)
		texts = append(texts, problem.Error())
	}
	return texts
}

func TestValidate_Rules(t *testing.T) {
	const (
		profile   = `must be the name of a MIG profile, such as 1g.10gb or 1g.10gb+me`
		alone     = `a GPU with a layout is always partitioned and offers its partitions alone`
		remove    = "the rule excludes its GPUs: remove one of the two"
		bothModes = "want the GPUs in MIG mode and out of it, and the mode does not follow single claims: set tiers to [mig], or leave mig out of them"
	)
	tests := map[string][]string{ // by a rule, what is wrong with it
		"mig: {}":                                                       nil,
		"mig: {mode: onDemand}":                                         nil,
		"mig: {mode: existing}":                                         nil,
		"mig: {mode: existing}, tiers: [mig]":                           nil,
		"mig: {profiles: [1g.10gb, 1g.10gb+me]}":                        nil,
		"mig: {layout: {1g.10gb: 7}}":                                   nil,
		"mig: {mode: layout, layout: {1g.10gb: 7}}":                     nil,
		"mig: {layout: {1g.10gb+me: 1, 3g.40gb: 1}}":                    nil,
		"mig: {layout: {1g.10gb: 1}}, tiers: [mig]":                     nil,
		"mig: {layout: {1g.10gb: 1}}, tiers: []":                        {`rules[0].mig: Forbidden: tiers does not have "mig"`},
		"mig: {mode: onDemand}, tiers: [mps]":                           {`rules[0].mig: Forbidden: tiers does not have "mig"`},
		"mig: {layout: {1g.10gb: 1}}, tiers: [mig, mps]":                {`rules[0].tiers: Invalid value: ["mig","mps"]: ` + alone + ": leave out tiers, or use mig.mode onDemand"},
		"mig: {layout: {1g.10gb: 1}}, mps: {}":                          {"rules[0].mps: Forbidden: " + alone},
		"mig: {mode: Layout}":                                           {`rules[0].mig.mode: Unsupported value: "Layout": supported values: "onDemand", "layout", "existing"`},
		"mig: {layout: {1g.10gb: 7}, disableWhenIdle: true}":            {"rules[0].mig.disableWhenIdle: Forbidden: it is for mode onDemand, and the mode is layout: remove one of the two"},
		"mig: {mode: layout}":                                           {`rules[0].mig.layout: Required value: mode is layout: say how many partitions of which profile, such as {"1g.10gb": 7}`},
		"mig: {layout: {}}":                                             {`rules[0].mig.layout: Required value: say how many partitions of which profile, such as {"1g.10gb": 7}, or leave it out`},
		"mig: {mode: onDemand, layout: {1g.10gb: 1}}":                   {"rules[0].mig.layout: Forbidden: mode is onDemand: remove one of the two"},
		"mig: {mode: existing, layout: {1g.10gb: 1}}":                   {"rules[0].mig.layout: Forbidden: mode is existing: remove one of the two"},
		"mig: {layout: {1g.10gb: 0, 2g.20gb: -1}}":                      {"rules[0].mig.layout[1g.10gb]: Invalid value: 0: must be 1 or more", "rules[0].mig.layout[2g.20gb]: Invalid value: -1: must be 1 or more"},
		"mig: {layout: {1g.10gb: }}":                                    {"rules[0].mig.layout[1g.10gb]: Invalid value: 0: must be 1 or more"},
		"mig: {layout: {1g.10gb: 1.5}}":                                 {"rules[0].mig.layout[1g.10gb]: Invalid value: must be a whole number, not the number 1.5"},
		`mig: {layout: {1g.10gb: "1"}}`:                                 {"rules[0].mig.layout[1g.10gb]: Invalid value: must be a whole number, not text"},
		"mig: {layout: [1g.10gb]}":                                      {"rules[0].mig.layout: Invalid value: must be an object, not a list"},
		"mig: {layout: {banana: 1}}":                                    {`rules[0].mig.layout[banana]: Invalid value: "banana": ` + profile},
		"mig: {layout: {1g.10gb: 1}, profiles: [1g.10gb]}":              {"rules[0].mig.profiles: Forbidden: the layout says which profiles there are"},
		"mig: {mode: existing, profiles: [1g.10gb]}":                    {"rules[0].mig.profiles: Forbidden: mode existing offers the partitions that are there, of whatever profile"},
		"mig: {profiles: []}":                                           {"rules[0].mig.profiles: Required value: name one, such as 1g.10gb, or leave it out for all; for no partitions leave mig out of tiers"},
		"mig: {profiles: [1g.10gb, 2g.20gb, 1g.10gb]}":                  {`rules[0].mig.profiles[2]: Duplicate value: "1g.10gb"`},
		"mig: {profiles: [1G.10GB, 1g10gb, 1g.10gb.me, 7, 1c.3g.40gb]}": {"rules[0].mig.profiles[3]: Invalid value: must be text, not a whole number: put it in quotes"},
		"mig: {profiles: [1G.10GB, 1g.10gb.me, 1c.3g.40gb, 0g.5gb]}": {
			`rules[0].mig.profiles[0]: Invalid value: "1G.10GB": ` + profile, `rules[0].mig.profiles[1]: Invalid value: "1g.10gb.me": ` + profile,
			`rules[0].mig.profiles[2]: Invalid value: "1c.3g.40gb": ` + profile, `rules[0].mig.profiles[3]: Invalid value: "0g.5gb": ` + profile,
		},
		"mig: {profiles: [1g.24gb+gfx, 1g.24gb+me.all, 1g.24gb-me]}": nil,
		"mig: {layout: {1g.24gb+me.all: 1, 1g.24gb-me: 3}}":          nil,
		"mig: {profiles: [1g.24gb+me+gfx, 1g.24gb-gfx, 1g.24gb+]}": {
			`rules[0].mig.profiles[0]: Invalid value: "1g.24gb+me+gfx": ` + profile, `rules[0].mig.profiles[1]: Invalid value: "1g.24gb-gfx": ` + profile,
			`rules[0].mig.profiles[2]: Invalid value: "1g.24gb+": ` + profile,
		},

		"tiers: [mig], mig: {modeChange: whenIdle}":                                                      nil,
		"mig: {layout: {1g.10gb: 7}, modeChange: whenIdle}":                                              nil,
		"tiers: [exclusive, timeSlice], mig: {modeChange: whenIdle}":                                     nil,
		"tiers: [exclusive], mig: {modeChange: never}":                                                   nil,
		"tiers: [exclusive, mig], mig: {modeChange: never, mode: existing}":                              nil,
		"mig: {modeChange: whenidle}":                                                                    {`rules[0].mig.modeChange: Unsupported value: "whenidle": supported values: "never", "whenIdle"`},
		"mig: {mode: existing, modeChange: whenIdle}":                                                    {"rules[0].mig.modeChange: Forbidden: mode existing leaves MIG mode and partitions to others: remove one of the two"},
		"tiers: [mig, mps], mig: {modeChange: whenIdle}":                                                 {`rules[0].mig.modeChange: Forbidden: the tiers ["mig" "mps"] ` + bothModes},
		"mig: {modeChange: whenIdle}":                                                                    {`rules[0].mig.modeChange: Forbidden: the tiers ["exclusive" "mig" "timeSlice" "mps"] ` + bothModes},
		"tiers: [exclusive], mig: {modeChange: whenIdle, profiles: [1g.10gb]}":                           {`rules[0].mig: Forbidden: tiers does not have "mig"`},
		"tiers: [exclusive], mig: {modeChange: whenIdle, share: [{profile: 1g.10gb, mps: {shares: 8}}]}": {`rules[0].mig: Forbidden: tiers does not have "mig"`},
		"tiers: [], mig: {modeChange: whenIdle}":                                                         {`rules[0].mig: Forbidden: tiers does not have "mig"`},
		"exclude: true, mig: {modeChange: whenIdle}":                                                     {"rules[0].mig: Forbidden: " + remove},
		"mig: {share: [{profile: 3g.40gb, mps: {shares: 8}}]}":                                           nil,
		"mig: {share: [{profile: 3g.40gb, mps: {}, timeSlice: {}}, {profile: 1g.10gb, mps: {}}]}":        nil,
		"mig: {profiles: [1g.10gb], share: [{profile: 3g.40gb, mps: {}}]}":                               nil,
		"mig: {mode: existing, share: [{profile: 3g.40gb, mps: {}}]}":                                    nil,
		"mig: {layout: {3g.40gb: 2}, share: [{profile: 3g.40gb, mps: {}}]}":                              nil,
		"mig: {layout: {4g.40gb: 1}, share: [{profile: 3g.40gb, mps: {}}]}":                              {`rules[0].mig.share[0].profile: Invalid value: "3g.40gb": the layout has no partition of it, so there is none to share: add it to mig.layout, or remove it here`},
		"timeSlice: {placement: spread}, mps: {placement: pack}":                                         nil,
		"mig: {share: [{profile: 3g.40gb, mps: {placement: spread}}]}":                                   nil,
		"timeSlice: {placement: distributed}, mps: {placement: Spread}": {
			`rules[0].timeSlice.placement: Unsupported value: "distributed": supported values: "pack", "spread"`,
			`rules[0].mps.placement: Unsupported value: "Spread": supported values: "pack", "spread"`,
		},
		"mig: {share: []}":                                {"rules[0].mig.share: Required value: name a profile whose partitions are shared, such as {profile: 3g.40gb, mps: {shares: 8}}, or leave it out"},
		"mig: {share: [{profile: 3g.40gb}]}":              {"rules[0].mig.share[0]: Required value: say how partitions of profile 3g.40gb are shared: mps: {} or timeSlice: {}"},
		"mig: {share: [{mps: {}}]}":                       {`rules[0].mig.share[0].profile: Invalid value: "": ` + profile},
		"mig: {share: [{profile: 1g.24gb+gfx, mps: {}}]}": nil,
		"mig: {share: [{profile: 3g.40gb, mps: {}}, {profile: 3g.40gb, timeSlice: {}}]}": {`rules[0].mig.share[1].profile: Duplicate value: "3g.40gb"`},
		"mig: {share: [{profile: 3g.40gb, mps: {shares: 61}}]}":                          {"rules[0].mig.share[0].mps.shares: Invalid value: 61: must be 1 to 60"},
		"mig: {share: [{profile: 3g.40gb, timeSlice: {interval: Long}}]}":                {"rules[0].mig.share[0].timeSlice.interval: Forbidden: a GPU has one interval for all of its partitions, so none can have its own: remove it"},
		"tiers: [exclusive], mig: {share: [{profile: 3g.40gb, mps: {}}]}":                {`rules[0].mig: Forbidden: tiers does not have "mig"`},
		"mig: {share: [{profile: 3g.40gb, mps: {}, count: 2}]}":                          {`unknown field "rules[0].mig.share[0].count"`},

		"exclude: true":                                                      nil,
		"exclude: true, match: {uuids: [GPU-1]}":                             nil,
		"exclude: true, health: {reaction: None}":                            nil,
		"exclude: true, tiers: [mig]":                                        {"rules[0].tiers: Forbidden: " + remove},
		"exclude: true, tiers: []":                                           {"rules[0].tiers: Forbidden: " + remove},
		"exclude: true, mig: {layout: {1g.10gb: 1}}, timeSlice: {}, mps: {}": {"rules[0].mig: Forbidden: " + remove, "rules[0].timeSlice: Forbidden: " + remove, "rules[0].mps: Forbidden: " + remove},
		`exclude: "true"`:                                                    {"rules[0].exclude: Invalid value: must be true or false, not text"},

		"tiers: [mig, mps, mig]": {`rules[0].tiers[2]: Duplicate value: "mig"`},

		"health: {}": nil,
		"health: {reaction: NoExecute, ignoreXIDs: [0, 94]}": nil,
		"health: {reaction: noSchedule, ignoreXIDs: [-1]}": {
			`rules[0].health.reaction: Unsupported value: "noSchedule": supported values: "None", "NoSchedule", "NoExecute"`, "rules[0].health.ignoreXIDs[0]: Invalid value: -1: must be 0 or more",
		},
		"timeSlice: {interval: Long}":  nil,
		"timeSlice: {interval: long}":  {`rules[0].timeSlice.interval: Unsupported value: "long": supported values: "Default", "Short", "Medium", "Long"`},
		"mps: {priority: BelowNormal}": nil,
		"mps: {priority: high}":        {`rules[0].mps.priority: Unsupported value: "high": supported values: "Normal", "BelowNormal"`},

		"timeSlice: {memory: {default: 20Gi}}":                                           nil,
		"timeSlice: {memory: {default: 1Gi}}":                                            nil,
		"mps: {memory: {minimum: 3Gi, step: 2Gi, default: 7Gi}}":                         nil,
		"timeSlice: {memory: {default: 512Mi}}":                                          {`rules[0].timeSlice.memory.default: Invalid value: "512Mi": must be the minimum of 1Gi or more`},
		"mps: {memory: {default: 1100Mi}}":                                               {`rules[0].mps.memory.default: Invalid value: "1100Mi": must be the minimum of 1Gi and whole steps of 256Mi: 1Gi is`},
		"mps: {memory: {minimum: 3Gi, step: 2Gi, default: 8Gi}}":                         {`rules[0].mps.memory.default: Invalid value: "8Gi": must be the minimum of 3Gi and whole steps of 2Gi: 7Gi is`},
		"mps: {memory: {minimum: 0, default: 1}}":                                        {`rules[0].mps.memory.minimum: Invalid value: "0": must be a whole number of bytes, 1Mi or more`, `rules[0].mps.memory.default: Invalid value: "1": must be a whole number of bytes, 1Mi or more`},
		"mps: {cores: {minimum: 5, step: 10, default: 25}}":                              nil,
		"mps: {cores: {default: 100}}":                                                   nil,
		"mps: {cores: {default: 0}}":                                                     {"rules[0].mps.cores.default: Invalid value: 0: must be 1 to 100"},
		"mps: {cores: {default: 101}}":                                                   {"rules[0].mps.cores.default: Invalid value: 101: must be 1 to 100"},
		"mps: {cores: {minimum: 10, default: 5}}":                                        {"rules[0].mps.cores.default: Invalid value: 5: must be the minimum of 10 or more"},
		"mps: {cores: {minimum: 10, step: 20, default: 40}}":                             {"rules[0].mps.cores.default: Invalid value: 40: must be the minimum of 10 and whole steps of 20: 30 is"},
		"match: {memory: {min: 70Gi}}":                                                   nil,
		"match: {memory: {min: 70Gi, max: 70Gi}}":                                        nil,
		"match: {memory: {}}":                                                            {"rules[0].match.memory: Required value: set min, max or both, such as {min: 70Gi}"},
		"pauseClients: [nvidia.com/gpu.deploy.dcgm, example.com/monitor], exclude: true": nil,
		"pauseClients: [dcgm, a b/c]":                                                    {`rules[0].pauseClients[0]: Invalid value: "dcgm": must have a domain, such as nvidia.com/gpu.deploy.dcgm`, `rules[0].pauseClients[1]: Invalid value: "a b/c": is not a valid label name: prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`},
		"pauseClients: [a/b, a/b]":                                                       {`rules[0].pauseClients[1]: Duplicate value: "a/b"`},
		"pauseClients: [nvidia.com/gpu.deploy.driver, kubernetes.io/os, node.k8s.io/a, gpu.cleave.dev/policy]": {`rules[0].pauseClients[0]: Invalid value: "nvidia.com/gpu.deploy.driver": is a label of more than clients of GPUs`, `rules[0].pauseClients[1]: Invalid value: "kubernetes.io/os": is a label of more than clients of GPUs`, `rules[0].pauseClients[2]: Invalid value: "node.k8s.io/a": is a label of more than clients of GPUs`, `rules[0].pauseClients[3]: Invalid value: "gpu.cleave.dev/policy": is a label of more than clients of GPUs`},
		"pauseClients: [" + strings.Repeat("a/b,", MaxClientLabels) + "a/b]":                                   {"rules[0].pauseClients: Too many: 17: must have at most 16 items"},
		"match: {memory: {min: 80Gi, max: 40Gi}}":                                                              {`rules[0].match.memory: Invalid value: "80Gi to 40Gi": min must not be more than max: no GPU matches`},
		"match: {memory: {min: 1, max: lots}}":                                                                 {`rules[0].match.memory.max: Invalid value: "lots": must be a quantity such as 512Mi`},
		"match: {memory: {min: 1, max: -1}}":                                                                   {`rules[0].match.memory.min: Invalid value: "1": must be a whole number of bytes, 1Mi or more`, `rules[0].match.memory.max: Invalid value: "-1": must be a whole number of bytes, 1Mi or more`},
		`match: {deviceIDs: ["0x233010DE", "0X233010de"]}`:                                                     nil,
		"match: {deviceIDs: [0x233010DE]}":                                                                     {"rules[0].match.deviceIDs[0]: Invalid value: must be text, not a whole number: put it in quotes"},
		`match: {deviceIDs: ["0x233010DE:0x16C110de"]}`:                                                        nil,
		`match: {deviceIDs: ["0x233010DE", "0x2330", "10de:2330", "0x233010DE:"]}`:                             {`rules[0].match.deviceIDs[1]: Invalid value: "0x2330": ` + deviceIDForm, `rules[0].match.deviceIDs[2]: Invalid value: "10de:2330": ` + deviceIDForm, `rules[0].match.deviceIDs[3]: Invalid value: "0x233010DE:": ` + deviceIDForm},
		`match: {uuids: [MIG-1, ""]}`:                                                                          {`rules[0].match.uuids[0]: Invalid value: "MIG-1": must be the UUID of a GPU as nvidia-smi -L has it: GPU-…`, `rules[0].match.uuids[1]: Invalid value: "": must be the UUID of a GPU as nvidia-smi -L has it: GPU-…`},
		`match: {productNames: [" "]}`:                                                                         {`rules[0].match.productNames[0]: Invalid value: " ": must be a product as nvidia-smi -L has it, such as "NVIDIA H100 80GB HBM3"`},
		"match: {indexes: [" + strings.Repeat("1,", MaxListed) + "1]}":                                         {"rules[0].match.indexes: Too many: 1025: must have at most 1024 items"},
		"match: {uuids: [" + strings.Repeat("a,", MaxListed) + "a]}":                                           {"rules[0].match.uuids: Too many: 1025: must have at most 1024 items"},
		"match: {indexes: [1]}, tiers: [mig], mig: {layout: {a: 0}}, x: y":                                     {`unknown field "rules[0].x"`},
	}
	for rule, want := range tests {
		t.Run(rule[:min(len(rule), 80)], func(t *testing.T) {
			if diff := cmp.Diff(want, problemsOf(t, "rules: [{"+rule+"}]")); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestValidate_Name(t *testing.T) {
	tests := map[string]bool{
		"training": true, "all-1g.10gb": true, "a": true, strings.Repeat("a", 63): true, "0": true,
		strings.Repeat("a", 64): false, "Training": false, "a_b": false, "-a": false, "a.": false, "a b": false, "built-in": false, "ä": false,
	}
	for name, ok := range tests {
		got := problemsOf(t, fmt.Sprintf("metadata: {name: %q}", name))
		if ok != (len(got) == 0) || !ok && !strings.HasPrefix(got[0], "metadata.name: Invalid value: ") {
			t.Errorf("%q: got %q, want good: %v", name, got, ok)
		}
		if err := CheckPolicyName(name); ok != (err == nil) {
			t.Errorf("%q: got %v, want good: %v", name, err, ok)
		}
	}
	if got := problemsOf(t, "metadata: {name: a, namespace: b}"); !cmp.Equal(got, []string{`unknown field "metadata.namespace"`}) {
		t.Errorf("got %q", got)
	}
	if got := problemsOf(t, "rules: ["+strings.Repeat("{match: {indexes: [0]}},", MaxRules+1)+"]"); !cmp.Equal(got, []string{"rules: Too many: 65: must have at most 64 items"}) {
		t.Errorf("got %q", got)
	}
}

func TestValidate_UnreachableRule(t *testing.T) {
	const all = "the rule never applies: "
	tests := map[string]struct {
		rules []string // their matches
		want  []string
	}{
		"apart":                    {[]string{"indexes: [0]", "indexes: [1]"}, nil},
		"narrow before wide":       {[]string{"indexes: [0]", "indexes: [0, 1]"}, nil},
		"wide before narrow":       {[]string{"indexes: [0, 1]", "indexes: [1]"}, []string{"rules[1].match: Forbidden: " + all + "rules[0] matches all of these GPUs"}},
		"the same":                 {[]string{"uuids: [GPU-1, GPU-2]", "uuids: [GPU-2, GPU-1]"}, []string{"rules[1].match: Forbidden: " + all + "rules[0] matches all of these GPUs"}},
		"another field":            {[]string{"indexes: [0]", "uuids: [GPU-1]"}, nil},
		"a field more":             {[]string{"indexes: [0]", "indexes: [0], uuids: [GPU-1]"}, []string{"rules[1].match: Forbidden: " + all + "rules[0] matches all of these GPUs"}},
		"a field less":             {[]string{"indexes: [0], uuids: [GPU-1]", "indexes: [0]"}, nil},
		"two before it":            {[]string{"indexes: [0]", "indexes: [1, 2]", "indexes: [1, 0]"}, []string{"rules[2].match: Forbidden: " + all + "rules[1] and rules[0] together match all of these GPUs"}},
		"two before it, and more":  {[]string{"indexes: [0]", "indexes: [1, 2]", "indexes: [1, 0, 3]"}, nil},
		"two before it, of a kind": {[]string{"indexes: [0], uuids: [GPU-1]", "indexes: [1]", "indexes: [0, 1], uuids: [GPU-1]"}, []string{"rules[2].match: Forbidden: " + all + "rules[0] and rules[1] together match all of these GPUs"}},
		"the first two are enough": {[]string{"indexes: [0]", "indexes: [1]", "indexes: [0]", "indexes: [1]"}, []string{"rules[2].match: Forbidden: " + all + "rules[0] matches all of these GPUs", "rules[3].match: Forbidden: " + all + "rules[1] matches all of these GPUs"}},
		"addresses of NVML":        {[]string{"pciAddresses: ['0000:CA:00.0']", "pciAddresses: ['00000000:ca:00.0']"}, []string{"rules[1].match: Forbidden: " + all + "rules[0] matches all of these GPUs"}},
		"addresses of domains":     {[]string{"pciAddresses: ['00010000:CA:00.0']", "pciAddresses: ['0000:ca:00.0']"}, nil},
		"a subsystem's GPUs":       {[]string{"deviceIDs: ['0x233010DE']", "deviceIDs: ['0x233010de:0x16C110DE']"}, []string{"rules[1].match: Forbidden: " + all + "rules[0] matches all of these GPUs"}},
		"a subsystem first":        {[]string{"deviceIDs: ['0x233010DE:0x16C110DE']", "deviceIDs: ['0x233010DE']"}, nil},
		"device IDs":               {[]string{"deviceIDs: ['0x233010DE']", "deviceIDs: ['0x233010de']"}, []string{"rules[1].match: Forbidden: " + all + "rules[0] matches all of these GPUs"}},
		"memory within":            {[]string{"memory: {min: 40Gi}", "memory: {min: 40960Mi, max: 80Gi}"}, []string{"rules[1].match: Forbidden: " + all + "rules[0] matches all of these GPUs"}},
		"memory beyond":            {[]string{"memory: {min: 40Gi, max: 80Gi}", "memory: {min: 40Gi}"}, nil},
		"memory below":             {[]string{"memory: {min: 40Gi}", "memory: {max: 40Gi}"}, nil},
		"memory of what is listed": {[]string{"memory: {min: 40Gi}", "indexes: [0]"}, nil},
		"memory and a list":        {[]string{"indexes: [0, 1], memory: {min: 40Gi}", "indexes: [1], memory: {min: 70Gi}"}, []string{"rules[1].match: Forbidden: " + all + "rules[0] matches all of these GPUs"}},
		"everything, not last":     {[]string{"indexes: [0]", "uuids: []", "indexes: [1]"}, []string{"rules[1].match: Required value: without it the rule matches every GPU, and the rules after it never apply: put it last"}},
		"everything, last":         {[]string{"indexes: [0]", "uuids: []"}, nil},
		"products as they are":     {[]string{"productNames: [A30]", "productNames: [a30]"}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, problemsOf(t, "rules: [{match: {"+strings.Join(tt.rules, "}}, {match: {")+"}}]")); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// Whatever rule is called unreached, no GPU must reach; the property is checked on every GPU of a small world.
func TestValidate_UnreachableRuleExhaustive(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	some := func() []int32 {
		var list []int32
		for n := range int32(3) {
			if random.IntN(2) == 0 {
				list = append(list, n)
			}
		}
		return list
	}
	uuids := func(list []int32) (texts []string) {
		for _, n := range list {
			texts = append(texts, fmt.Sprintf("GPU-%d", n))
		}
		return texts
	}
	refused := 0
	for range 20_000 {
		var rules []Rule
		for range 4 {
			rules = append(rules, Rule{Match: &Match{Indexes: some(), UUIDs: uuids(some())}})
		}
		first := func(index, uuid int32) int {
			return slices.IndexFunc(rules, func(r Rule) bool {
				return (r.Match.Indexes == nil || slices.Contains(r.Match.Indexes, index)) && (r.Match.UUIDs == nil || slices.Contains(r.Match.UUIDs, fmt.Sprintf("GPU-%d", uuid)))
			})
		}
		reached := map[int]bool{}
		for index := range int32(4) { // one more than any list has
			for uuid := range int32(4) {
				reached[first(index, uuid)] = true
			}
		}
		text := unreached(rules).ToAggregate()
		for i := range rules {
			says := text != nil && strings.Contains(text.Error(), fmt.Sprintf("rules[%d].match: Forbidden", i))
			if says {
				refused++
			}
			if says && reached[i] {
				t.Fatalf("rule %d is refused though a GPU reaches it: %v", i, text)
			}
		}
	}
	if refused < 1000 {
		t.Errorf("only %d rules were refused", refused)
	}
}
