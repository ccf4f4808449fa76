// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// policyHead are the lines with which every policy starts.
const policyHead = "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\n"

func TestDecodePolicy(t *testing.T) {
	tests := map[string]struct {
		body string
		want []Rule
	}{
		"nothing said":  {"", nil},
		"no rules":      {"rules: []", []Rule{}},
		"an empty rule": {"rules: [{}]", []Rule{{}}},
		"no tiers":      {"rules: [{tiers: []}]", []Rule{{Tiers: []Tier{}}}},
		"null tiers":    {"rules: [{tiers: }]", []Rule{{}}},
		"all tiers":     {"rules: [{tiers: [exclusive, mig, timeSlice, mps]}]", []Rule{{Tiers: Tiers()}}},
		"every field": {`
rules:
- match:
    productNames: ["NVIDIA H100 80GB HBM3"]
    uuids: [GPU-1, GPU-2]
    pciAddresses: ["0000:1b:00.0", "00000000:1C:00.0"]
    indexes: [0, 7]
    deviceIDs: ["0x233010DE"]
    memory: {min: 70Gi, max: 100Gi}
  tiers: [mig, timeSlice, mps]
  mig: {mode: onDemand, profiles: [1g.10gb, 1g.10gb+me]}
  timeSlice:
    shares: 8
    memory: {minimum: 2Gi, step: 512Mi, default: 3Gi}
    interval: Long
  mps:
    shares: 60
    memory: {minimum: 1Mi, step: 1Mi, default: 5Mi}
    cores: {minimum: 5, step: 100, default: 5}
    sharedMemory: 4Gi
    priority: BelowNormal
  health: {reaction: NoExecute, ignoreXIDs: [94]}
- match: {indexes: [1]}
  mig: {layout: {1g.10gb: 2, 3g.40gb: 1}}
- match: {indexes: [2]}
  mig: {mode: existing}
- match: {indexes: [3]}
  exclude: true
- tiers: [mig]
`, []Rule{
			{
				Match: &Match{
					ProductNames: []string{"NVIDIA H100 80GB HBM3"}, UUIDs: []string{"GPU-1", "GPU-2"},
					PCIAddresses: []string{"0000:1b:00.0", "00000000:1C:00.0"}, Indexes: []int32{0, 7},
					DeviceIDs: []string{"0x233010DE"}, Memory: &MemoryRange{Min: amount("70Gi"), Max: amount("100Gi")},
				},
				Tiers:     []Tier{TierMIG, TierTimeSlice, TierMPS},
				MIG:       &MIGPolicy{Mode: MIGOnDemand, Profiles: []string{"1g.10gb", "1g.10gb+me"}},
				TimeSlice: &TimeSlicePolicy{Shares: ptr(int32(8)), Memory: &MemoryCut{Minimum: amount("2Gi"), Step: amount("512Mi"), Default: amount("3Gi")}, Interval: IntervalLong},
				MPS: &MPSPolicy{
					Shares: ptr(int32(60)), Memory: &MemoryCut{Minimum: amount("1Mi"), Step: amount("1Mi"), Default: amount("5Mi")},
					Cores: &CoreCut{Minimum: ptr(int32(5)), Step: ptr(int32(100)), Default: ptr(int32(5))}, SharedMemory: amount("4Gi"), Priority: PriorityBelowNormal,
				},
				Health: &HealthPolicy{Reaction: ReactNoExecute, IgnoreXIDs: []int32{94}},
			},
			{Match: &Match{Indexes: []int32{1}}, MIG: &MIGPolicy{Layout: map[string]int32{"1g.10gb": 2, "3g.40gb": 1}}},
			{Match: &Match{Indexes: []int32{2}}, MIG: &MIGPolicy{Mode: MIGExisting}},
			{Match: &Match{Indexes: []int32{3}}, Exclude: true},
			{Tiers: []Tier{TierMIG}},
		}},
		"most shares":             {"rules: [{timeSlice: {shares: 1000}}]", []Rule{{TimeSlice: &TimeSlicePolicy{Shares: ptr(int32(1000))}}}},
		"JSON":                    {"rules: [{\"mps\": {\"shares\": 1}}]", []Rule{{MPS: &MPSPolicy{Shares: ptr(int32(1))}}}},
		"memory with a fraction":  {"rules: [{timeSlice: {memory: {step: 1.5Gi}}}]", []Rule{{TimeSlice: &TimeSlicePolicy{Memory: &MemoryCut{Step: amount("1536Mi")}}}}},
		"memory as a number":      {"rules: [{timeSlice: {memory: {minimum: 1073741824}}}]", []Rule{{TimeSlice: &TimeSlicePolicy{Memory: &MemoryCut{Minimum: amount("1073741824")}}}}},
		"memory as YAML's float":  {"rules: [{timeSlice: {memory: {minimum: 1e9}}}]", []Rule{{TimeSlice: &TimeSlicePolicy{Memory: &MemoryCut{Minimum: amount("1e9")}}}}},
		"an address in no quotes": {"rules: [{match: {pciAddresses: [0000:18:00.0]}}]", []Rule{{Match: &Match{PCIAddresses: []string{"0000:18:00.0"}}}}},
		"anchors": {"rules:\n- match: {indexes: [1]}\n  timeSlice: &cut {shares: 2}\n- timeSlice: *cut", []Rule{
			{Match: &Match{Indexes: []int32{1}}, TimeSlice: &TimeSlicePolicy{Shares: ptr(int32(2))}}, {TimeSlice: &TimeSlicePolicy{Shares: ptr(int32(2))}},
		}},
		"comments and marks around it": {"# no more\n---\n# nothing\n", nil},
		// YAML 1.1, which Kubernetes reads, takes a leading zero for an octal number.
		"octal": {"rules: [{timeSlice: {shares: 010}}]", []Rule{{TimeSlice: &TimeSlicePolicy{Shares: ptr(int32(8))}}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := DecodeNodePolicy([]byte("# A policy.\n---\n" + policyHead + tt.body))
			if err != nil {
				t.Fatal(err)
			}
			want := &NodePolicy{TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: NodePolicyKind}, Rules: tt.want}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("policy (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodePolicy_JSON(t *testing.T) {
	got, err := DecodeNodePolicy([]byte(`{"apiVersion":"gpu.cleave.dev/v1alpha1","kind":"NodePolicy","rules":[{"tiers":["mig"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Rule{{Tiers: []Tier{TierMIG}}}, got.Rules); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

func TestDecodePolicy_Errors(t *testing.T) {
	rule := func(body string) string { return policyHead + "rules: [{" + body + "}]" }
	tests := map[string]struct {
		data string
		want []string
	}{
		"nothing":            {"", []string{"set apiVersion and kind", APIVersion, NodePolicyKind}},
		"only comments":      {"# a policy\n", []string{"set apiVersion and kind"}},
		"text":               {"all", []string{"JSON object with apiVersion and kind"}},
		"a list":             {"- a", []string{"JSON object with apiVersion and kind"}},
		"no YAML":            {policyHead + "rules:\n\t- x", []string{"read YAML", "line 4"}},
		"no UTF-8":           {policyHead + "\xff: 1", []string{"read YAML"}},
		"claim parameters":   {share(`"mps":{}`), []string{`unknown kind "ShareConfig"`, NodePolicyKind}},
		"another group":      {"apiVersion: v1\nkind: NodePolicy", []string{`apiVersion "v1"`, APIVersion}},
		"a device plugin's":  {"version: v1\nsharing: {timeSlicing: {resources: []}}", []string{"set apiVersion and kind"}},
		"two documents":      {policyHead + "---\n" + policyHead, []string{"several documents"}},
		"another document":   {policyHead + "\n---\nx: y\n---\n", []string{"several documents"}},
		"too large":          {policyHead + "#" + strings.Repeat("x", 1<<20), []string{"more than 1048576"}},
		"an alias bomb":      {"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n", []string{"read YAML", "alias"}},
		"deep":               {policyHead + "rules: " + strings.Repeat("[", 100_000), []string{"read YAML"}},
		"a list for a key":   {policyHead + "? [a]\n: 2", []string{"read YAML", "key"}},
		"unknown field":      {policyHead + "tiers: [mig]", []string{`unknown field "tiers"`}},
		"unknown deep field": {rule("timeSlice: {replicas: 4}"), []string{`unknown field "rules[0].timeSlice.replicas"`}},
		"another case":       {policyHead + "Rules: []", []string{`unknown field "Rules"`}},
		"a field twice":      {policyHead + "rules: []\nrules: []", []string{"read YAML", `"rules"`, "line 4"}},
		"odd fields":         {policyHead + "\"a\\nb\": 1\n1: 2\ntrue: 3", []string{`unknown field "1"`, `unknown field "true"`}},

		"rules of wrong type":     {policyHead + "rules: {}", []string{"rules: Invalid value: must be a list, not an object"}},
		"rule of wrong type":      {policyHead + "rules: [mig]", []string{"rules[0]: Invalid value: must be an object, not text"}},
		"a rule that is null":     {policyHead + "rules:\n-\n", []string{"rules[0]", "null"}},
		"unknown tier":            {rule("tiers: [mig, timeslice]"), []string{"rules[0].tiers[1]", `"timeslice"`, `"timeSlice"`}},
		"tier that is true":       {rule("tiers: [on]"), []string{"rules[0].tiers[0]: Invalid value: must be text, not true or false: put it in quotes"}},
		"tier that is null":       {rule("tiers: [mig, ~]"), []string{"rules[0].tiers[1]", "null"}},
		"index that is null":      {rule("match: {indexes: [~]}"), []string{"rules[0].match.indexes[0]", "null"}},
		"index below zero":        {rule("match: {indexes: [3, -1]}"), []string{"rules[0].match.indexes[1]", "0 or more"}},
		"index as text":           {rule(`match: {indexes: ["0"]}`), []string{"rules[0].match.indexes[0]: Invalid value: must be a whole number, not text"}},
		"address of no GPU":       {rule(`match: {pciAddresses: ["0000:1b:00.0", "1b:00.0"]}`), []string{"rules[0].match.pciAddresses[1]", `"1b:00.0"`, "0000:1b:00.0"}},
		"address with dashes":     {rule("match: {pciAddresses: [0000-1b-00-0]}"), []string{"rules[0].match.pciAddresses[0]"}},
		"address that's a number": {rule("match: {pciAddresses: [1_000]}"), []string{"rules[0].match.pciAddresses[0]: Invalid value: must be text, not a whole number: put it in quotes"}},
		"UUID that is a number":   {rule("match: {uuids: [1e3]}"), []string{"rules[0].match.uuids[0]: Invalid value: must be text, not"}},
		"shares of no tier":       {rule("tiers: [mig], timeSlice: {shares: 2}"), []string{"rules[0].timeSlice", `tiers does not have "timeSlice"`}},
		"MPS of no tier":          {rule("tiers: [], mps: {}"), []string{"rules[0].mps", `tiers does not have "mps"`}},
		"a rule never reached":    {policyHead + "rules: [{match: {indexes: [1]}}, {tiers: [mig]}, {tiers: [mps]}]", []string{"rules[1].match", "put it last"}},
		"a match of everything":   {policyHead + "rules: [{match: {uuids: []}}, {tiers: [mps]}]", []string{"rules[0].match", "put it last"}},
		"both cuts":               {rule("timeSlice: {shares: 0}, mps: {shares: 0}"), []string{"rules[0].timeSlice.shares", "rules[0].mps.shares"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := DecodeNodePolicy([]byte(tt.data))
			checkRefused(t, got == nil, err, tt.want)
		})
	}
}

func TestDecodePolicy_OutOfBounds(t *testing.T) {
	const whole, unit = "must be a whole number of bytes, 1Mi or more", "must be a quantity such as 512Mi"
	tests := map[string]string{ // by what is wrong in the first rule, what is said
		"timeSlice: {shares: 0}":       "timeSlice.shares: Invalid value: 0: must be 1 to 1000",
		"timeSlice: {shares: 1001}":    "timeSlice.shares: Invalid value: 1001: must be 1 to 1000",
		"mps: {shares: 0}":             "mps.shares: Invalid value: 0: must be 1 to 60",
		"mps: {shares: 61}":            "mps.shares: Invalid value: 61: must be 1 to 60",
		"mps: {cores: {minimum: 0}}":   "mps.cores.minimum: Invalid value: 0: must be 1 to 100",
		"mps: {cores: {minimum: 101}}": "mps.cores.minimum: Invalid value: 101: must be 1 to 100",
		"mps: {cores: {step: 0}}":      "mps.cores.step: Invalid value: 0: must be 1 to 100",
		"mps: {cores: {step: 101}}":    "mps.cores.step: Invalid value: 101: must be 1 to 100",
		"mps: {sharedMemory: 1023Ki}":  `mps.sharedMemory: Invalid value: "1023Ki": ` + whole,
		"mps: {sharedMemory: 1GB}":     `mps.sharedMemory: Invalid value: "1GB": ` + unit,
	}
	for _, field := range []string{"timeSlice.memory.minimum", "timeSlice.memory.step", "mps.memory.minimum", "mps.memory.step"} {
		for value, why := range map[string]string{
			`"0"`: whole, `"-1Gi"`: whole, `"9223372036854775808"`: whole, `"1e99"`: whole, `"1e999999999"`: unit, `"1 Gi"`: unit, `""`: unit,
		} {
			parts := strings.Split(field, ".")
			tests[parts[0]+": {memory: {"+parts[2]+": "+value+"}}"] = field + ": Invalid value: " + value + ": " + why
		}
	}
	for body, want := range tests {
		t.Run(body, func(t *testing.T) {
			got, err := DecodeNodePolicy([]byte(policyHead + "rules: [{" + body + "}]"))
			checkRefused(t, got == nil, err, []string{"rules[0]." + want})
		})
	}
}

func FuzzNodePolicy(f *testing.F) {
	for _, body := range []string{
		"", "rules: [{match: {indexes: [0], pciAddresses: ['0000:1b:00.0']}, tiers: [mps], mps: {shares: 48, cores: {step: 5}, sharedMemory: 1Gi}}]",
		"rules: [{timeSlice: {shares: 4, memory: {minimum: 1Gi, step: 1e9}}}]", "a: 1\na: 2\n\"b\\nc\": 1", "---\nx: y", "rules:\n- &a {tiers: }\n- *a",
		"metadata: {name: a}\nrules: [{match: {deviceIDs: ['0x233010DE'], memory: {min: 1Gi}}, exclude: true}, {mig: {layout: {1g.10gb: 2}}}]",
		"rules: [{mig: {profiles: [1g.10gb]}, health: {reaction: None, ignoreXIDs: [94]}, mps: {cores: {default: 5}, memory: {default: 2Gi}}}]",
		"rules: [{timeSlice: {memory: {minimum: 1e999999999}}}]", "rules: [{timeSlice: {memory: {minimum: '0e-999999999'}}}]",
	} {
		f.Add([]byte(policyHead + body))
	}
	f.Add([]byte("\xff\xfe"))
	f.Add([]byte(strings.Repeat("{", 5000)))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := DecodeNodePolicy(data)
		if err != nil {
			checkText(t, err)
			return
		}
		for i := range p.Rules {
			if p.Rules[i].Match == nil && i < len(p.Rules)-1 {
				t.Errorf("%q: rule %d hides those after it", data, i)
			}
		}
	})
}
