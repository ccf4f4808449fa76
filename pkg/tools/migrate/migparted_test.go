// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rest are the GPUs that no entry is of.
const (
	disabledAll = "- {tiers: [exclusive], mig: {modeChange: whenIdle}}\n"
	rest        = "- {tiers: [exclusive, mig], mig: {mode: existing}}\n"
	strategies  = "mig-configs: "
)

func layoutOf(match, layout string) string {
	return fmt.Sprintf("- {%stiers: [mig], mig: {mode: layout, layout: {%s}, modeChange: whenIdle}}\n", match, layout)
}

func TestMIGParted_Fields(t *testing.T) {
	const gpuClass, small, allProfiles = `.type == "gpu"`, `.type == "mig" && .profile == "1g.10gb"`, "all profiles"
	tests := map[string]struct {
		entries string
		rules   string
		classes map[string]string
		notes   []string
	}{
		"disabled":                {"[{devices: all, mig-enabled: false}]", disabledAll, map[string]string{wholeResource: gpuClass}, nil},
		"disabled, nothing":       {"[{devices: all, mig-enabled: false, mig-devices: {}}]", disabledAll, map[string]string{wholeResource: gpuClass}, nil},
		"enabled, nothing":        {"[{devices: all, mig-enabled: true, mig-devices: {}}]", "- {tiers: [mig], mig: {mode: existing}}", map[string]string{"mixed": allProfiles}, []string{"mig-configs[c][0].mig-devices: {}"}},
		"a layout":                {`[{devices: all, mig-enabled: true, mig-devices: {"1g.10gb": 7}}]`, layoutOf("", "1g.10gb: 7"), map[string]string{"nvidia.com/mig-1g.10gb": small}, nil},
		"with media engines":      {`[{devices: all, mig-enabled: true, mig-devices: {"1g.10gb+me": 1}}]`, layoutOf("", "1g.10gb+me: 1"), map[string]string{"nvidia.com/mig-1g.10gb.me": `.type == "mig" && .profile == "1g.10gb+me"`}, nil},
		"none of some":            {`[{devices: all, mig-enabled: true, mig-devices: {"1g.10gb": 7, "2g.20gb": 0}}]`, layoutOf("", "1g.10gb: 7"), map[string]string{"nvidia.com/mig-1g.10gb": small}, nil},
		"a filter":                {`[{device-filter: "0x233010DE", devices: all, mig-enabled: false}]`, "- {match: {deviceIDs: ['0x233010DE']}, tiers: [exclusive], mig: {modeChange: whenIdle}}\n" + rest, map[string]string{wholeResource: gpuClass, "mixed": allProfiles}, nil},
		"a filter in small print": {`[{device-filter: ["0x20b010de"], devices: all, mig-enabled: false}]`, "- {match: {deviceIDs: ['0x20B010DE']}, tiers: [exclusive], mig: {modeChange: whenIdle}}\n" + rest, map[string]string{wholeResource: gpuClass, "mixed": allProfiles}, nil},
		"an empty filter":         {`[{device-filter: "", devices: all, mig-enabled: false}]`, disabledAll, map[string]string{wholeResource: gpuClass}, nil},
		"no filter":               {`[{device-filter: [], devices: all, mig-enabled: false}]`, disabledAll, map[string]string{wholeResource: gpuClass}, nil},
		"a board's own ID": {`[{device-filter: ["0x233010DE:0x16C110DE", "0x233110DE"], devices: all, mig-enabled: false}]`, "- {match: {deviceIDs: ['0x233010DE:0x16C110DE', '0x233110DE']}, tiers: [exclusive], mig: {modeChange: whenIdle}}\n" + rest,
			map[string]string{wholeResource: gpuClass, "mixed": allProfiles}, nil},
		"indexes": {`[{devices: [0, 3], mig-enabled: false}]`, "- {match: {indexes: [0, 3]}, tiers: [exclusive], mig: {modeChange: whenIdle}}\n" + rest, map[string]string{wholeResource: gpuClass, "mixed": allProfiles}, nil},
		"a filter and indexes": {`[{device-filter: "0x233010DE", devices: [1], mig-enabled: true, mig-devices: {"1g.10gb": 7}}]`, layoutOf("match: {deviceIDs: ['0x233010DE'], indexes: [1]}, ", "1g.10gb: 7") + rest,
			map[string]string{wholeResource: gpuClass, "mixed": allProfiles}, nil},
		"no GPU": {`[{devices: [], mig-enabled: false}, {devices: all, mig-enabled: true, mig-devices: {"1g.10gb": 7}}]`, layoutOf("", "1g.10gb: 7"), map[string]string{"nvidia.com/mig-1g.10gb": small}, []string{"mig-configs[c][0].devices: []"}},
		"several": {`[{devices: [0], mig-enabled: false}, {devices: [1], mig-enabled: true, mig-devices: {"1g.10gb": 7}}]`,
			"- {match: {indexes: [0]}, tiers: [exclusive], mig: {modeChange: whenIdle}}\n" + layoutOf("match: {indexes: [1]}, ", "1g.10gb: 7") + rest, map[string]string{wholeResource: gpuClass, "mixed": allProfiles}, nil},
		"the last holds": {`[{devices: all, mig-enabled: false}, {devices: [1], mig-enabled: true, mig-devices: {"1g.10gb": 7}}]`,
			layoutOf("match: {indexes: [1]}, ", "1g.10gb: 7") + disabledAll, map[string]string{wholeResource: gpuClass, "nvidia.com/mig-1g.10gb": small}, []string{"mig-configs[c]: "}},
		"the last holds for some": {`[{devices: [0, 1], mig-enabled: false}, {devices: [1, 2], mig-enabled: true, mig-devices: {"1g.10gb": 7}}]`,
			layoutOf("match: {indexes: [1, 2]}, ", "1g.10gb: 7") + "- {match: {indexes: [0, 1]}, tiers: [exclusive], mig: {modeChange: whenIdle}}\n" + rest, map[string]string{wholeResource: gpuClass, "mixed": allProfiles}, []string{"mig-configs[c]: "}},
		"the last holds for all": {`[{devices: [1], mig-enabled: true, mig-devices: {"1g.10gb": 7}}, {devices: all, mig-enabled: false}]`,
			disabledAll, map[string]string{wholeResource: gpuClass}, []string{"mig-configs[c]: ", "mig-configs[c][0]: "}},
		"filters apart": {`[{device-filter: "0x233010DE", devices: [0], mig-enabled: false}, {device-filter: "0x20B010DE", devices: [0], mig-enabled: true, mig-devices: {"1g.10gb": 4}}]`,
			"- {match: {deviceIDs: ['0x233010DE'], indexes: [0]}, tiers: [exclusive], mig: {modeChange: whenIdle}}\n" + layoutOf("match: {deviceIDs: ['0x20B010DE'], indexes: [0]}, ", "1g.10gb: 4") + rest,
			map[string]string{wholeResource: gpuClass, "mixed": allProfiles}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			i, err := MIGParted([]byte("version: v1\nmig-configs: {c: "+tt.entries+"}"), Options{})
			if err != nil {
				t.Fatal(err)
			}
			check(t, i, outcome{map[string]string{"c": tt.rules}, tt.classes, append(tt.notes, strategies)})
		})
	}
}

func TestMIGParted_NoEquivalent(t *testing.T) {
	const disabled = "[{devices: all, mig-enabled: false}]"
	config := func(profile string) string {
		return fmt.Sprintf("[{devices: all, mig-enabled: true, mig-devices: {%q: 1, 1g.10gb: 1}}]", profile)
	}
	tests := map[string]struct{ name, entries, want string }{
		"an unknown kind":     {"c", config("1g.24gb+me+gfx"), "mig-configs[c][0].mig-devices[1g.24gb+me+gfx]: no equivalent: it is the name of no MIG profile that Cleave knows"},
		"compute instances":   {"c", config("1c.3g.40gb"), "mig-configs[c][0].mig-devices[1c.3g.40gb]: no equivalent: in Cleave a compute instance fills its partition. Use smaller partitions"},
		"the built-in policy": {"built-in", disabled, `mig-configs[built-in]: its name cannot be that of a policy: metadata.name: Invalid value: "built-in": is the name of the policy of nodes that none is given: choose another`},
		"no name":             {"'a b'", disabled, `mig-configs[a b]: its name cannot be that of a policy: metadata.name: Invalid value: "a b": must be the value of a node label: lower-case letters, digits, '-' and '.', 63 at most, such as training`},
		"a name of another":   {"OTHER", disabled, "mig-configs[OTHER]: its policy would be named other, as that of other is: rename one"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			i, err := MIGParted([]byte("version: v1\nmig-configs: {"+tt.name+": "+tt.entries+", other: "+disabled+"}"), Options{})
			if err != nil {
				t.Fatal(err)
			}
			if len(i.Policies) != 1 || i.Policies[0].Metadata.Name != "other" || len(i.LeftOut) != 1 {
				t.Fatalf("got %d policies, left out %v", len(i.Policies), i.LeftOut)
			}
			if diff := cmp.Diff(tt.want, i.LeftOut[0].Err.Error()); diff != "" {
				t.Errorf("left out (-want +got):\n%s", diff)
			}
			if got := i.Notes[0].String(); !strings.HasPrefix(got, tt.want) || !strings.HasSuffix(got, "The mig-config is left out") {
				t.Errorf("note: got %q", got)
			}
			if _, err := MIGParted([]byte("version: v1\nmig-configs: {"+tt.name+": "+tt.entries+"}"), Options{}); err == nil && name != "a name of another" || err != nil && err.Error() != tt.want {
				t.Errorf("alone: got %v, want %s", err, tt.want)
			}
		})
	}
}

func TestMIGParted_PolicyNames(t *testing.T) {
	const disabled = "[{devices: all, mig-enabled: false}]"
	i, err := MIGParted([]byte("version: v1\nmig-configs: {All_Disabled: "+disabled+", all-1g.5gb.me: "+disabled+"}"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	check(t, i, outcome{map[string]string{"all-disabled": disabledAll, "all-1g.5gb.me": disabledAll}, map[string]string{wholeResource: `.type == "gpu"`},
		[]string{"mig-configs[All_Disabled]: All_Disabled", strategies}})
	i, err = MIGParted([]byte("version: v1\nmig-configs: {A: "+disabled+", a_: "+disabled+", a-b: "+disabled+", a_b: "+disabled+", A_b: "+disabled+"}"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, l := range i.LeftOut {
		left = append(left, l.Name)
	}
	if diff := cmp.Diff([]string{"A_b", "a_", "a_b"}, left); diff != "" {
		t.Errorf("left out (-want +got):\n%s", diff)
	}
}

func TestMIGParted_OneConfig(t *testing.T) {
	text := []byte(`{"version": "v1", "mig-configs": {"a": [{"devices": "all", "mig-enabled": false}], "b": [{"devices": "all", "mig-enabled": true, "mig-devices": {"1g.10gb": 7}}]}}`)
	i, err := MIGParted(text, Options{Name: "b"})
	if err != nil {
		t.Fatal(err)
	}
	check(t, i, outcome{map[string]string{"b": layoutOf("", "1g.10gb: 7")}, map[string]string{"nvidia.com/mig-1g.10gb": `.type == "mig" && .profile == "1g.10gb"`}, []string{strategies}})
	if _, err := MIGParted(text, Options{Name: "c"}); err == nil || err.Error() != `mig-configs: there is no "c": choose one of a, b` {
		t.Errorf("one that is not there: got %v", err)
	}
}

func TestMIGParted_Errors(t *testing.T) {
	const one = "version: v1\nmig-configs: {c: [%s]}"
	tests := map[string]struct {
		text string
		want []string
	}{
		"no version":                 {"mig-configs: {}", []string{"version: Required value: want v1"}},
		"another version":            {"version: v2", []string{`version: Unsupported value: "v2": supported values: "v1"`}},
		"no configs":                 {"version: v1", []string{"mig-configs: Required value: want at least one"}},
		"empty configs":              {"version: v1\nmig-configs: {}", []string{"mig-configs: Required value: want at least one"}},
		"an empty config":            {"version: v1\nmig-configs: {c: []}", []string{"mig-configs[c]: Required value: want at least one entry"}},
		"unknown section":            {"version: v1\nmigConfigs: {}", []string{`unknown field "migConfigs"`}},
		"unknown field":              {fmt.Sprintf(one, "{devices: all, mig-enabled: false, banana: 1}"), []string{`unknown field "mig-configs.c[0].banana"`}},
		"an entry's elsewhere":       {"version: v1\ndevices: all\nmig-configs: {c: [{devices: all, mig-enabled: false}]}", []string{`unknown field "devices": did you mean mig-configs.devices?`}},
		"an empty entry":             {fmt.Sprintf(one, "{}"), []string{"mig-configs[c][0].devices: Required value: want all, or a list of indexes such as [0, 1]", "mig-configs[c][0].mig-enabled: Required value: want true or false"}},
		"no partitions":              {fmt.Sprintf(one, "{devices: all, mig-enabled: true}"), []string{"mig-configs[c][0].mig-devices: Required value: mig-enabled is true: say which partitions, {} for none"}},
		"partitions, disabled":       {fmt.Sprintf(one, "{devices: all, mig-enabled: false, mig-devices: {1g.10gb: 1}}"), []string{"mig-configs[c][0].mig-devices: Forbidden: mig-enabled is false"}},
		"none of any":                {fmt.Sprintf(one, "{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 0}}"), []string{`mig-configs[c][0].mig-devices: Invalid value: "0": at least one profile must have a number above 0`}},
		"less than none":             {fmt.Sprintf(one, "{devices: all, mig-enabled: true, mig-devices: {1g.10gb: -1}}"), []string{"mig-configs[c][0].mig-devices[1g.10gb]: Invalid value: -1: must be a number of partitions"}},
		"no profile":                 {fmt.Sprintf(one, "{devices: all, mig-enabled: true, mig-devices: {small: 1}}"), []string{`mig-configs[c][0].mig-devices[small]: Invalid value: "small": must be the name of a MIG profile, such as 1g.10gb`}},
		"half a partition":           {fmt.Sprintf(one, "{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 1.5}}"), []string{"mig-configs[c][0].mig-devices[1g.10gb]: Invalid value: must be a whole number, not the number 1.5"}},
		"enabled in words":           {fmt.Sprintf(one, "{devices: all, mig-enabled: 'true', mig-devices: {}}"), []string{"mig-configs[c][0].mig-enabled: Invalid value: must be true or false, not text"}},
		"some devices":               {fmt.Sprintf(one, "{devices: some, mig-enabled: false}"), []string{`mig-configs[c][0].devices: Invalid value: "some": must be all, or a list of indexes such as [0, 1]`}},
		"devices, a number":          {fmt.Sprintf(one, "{devices: 0, mig-enabled: false}"), []string{"mig-configs[c][0].devices: Invalid value: must be all, or a list of indexes such as [0, 1]"}},
		"odd devices":                {fmt.Sprintf(one, "{devices: [-1, x, 99999999999, 1, 1], mig-enabled: false}"), []string{"mig-configs[c][0].devices[0]: Invalid value: -1: must be the index of a GPU, 0 or more", `mig-configs[c][0].devices[1]: Invalid value: "x": must be the index of a GPU, 0 or more`, "mig-configs[c][0].devices[2]: Invalid value: 99999999999: must be the index of a GPU, 0 or more", "mig-configs[c][0].devices[4]: Duplicate value: 1"}},
		"more GPUs than a node has":  {fmt.Sprintf(one, "{devices: ["+strings.Repeat("1,", 257)+"], mig-enabled: false}"), []string{"mig-configs[c][0].devices: Too many: 257: must have at most 256 items"}},
		"more boards than there are": {fmt.Sprintf(one, "{device-filter: ["+strings.Repeat("a,", 257)+"], devices: all, mig-enabled: false}"), []string{"mig-configs[c][0].device-filter: Too many: 257: must have at most 256 items"}},
		"a filter that YAML takes for a number": {fmt.Sprintf(one, "{device-filter: [0x233010DE], devices: all, mig-enabled: false}"), []string{
			`mig-configs[c][0].device-filter[0]: Invalid value: 590352606: must be text such as "0x233010DE": put it in quotes`}},
		"a filter by name":       {fmt.Sprintf(one, "{device-filter: A100-SXM4-40GB, devices: all, mig-enabled: false}"), []string{`mig-configs[c][0].device-filter[0]: Invalid value: "A100-SXM4-40GB": must be a PCI device ID and the vendor's, such as 0x233010DE`}},
		"a filter without maker": {fmt.Sprintf(one, "{device-filter: '0x2330', devices: all, mig-enabled: false}"), []string{`mig-configs[c][0].device-filter[0]: Invalid value: "0x2330": must be a PCI device ID and the vendor's, such as 0x233010DE`}},
		"a filter twice":         {fmt.Sprintf(one, "{device-filter: ['0x233010DE', '0x233010de'], devices: all, mig-enabled: false}"), []string{`mig-configs[c][0].device-filter[1]: Duplicate value: "0x233010de"`}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			i, err := MIGParted([]byte(tt.text), Options{})
			if diff := cmp.Diff(tt.want, problems(err)); diff != "" || i != nil {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
	var entries []string
	for n := range 70 {
		entries = append(entries, fmt.Sprintf("{devices: [%d], mig-enabled: false}", n))
	}
	if _, err := MIGParted([]byte(fmt.Sprintf(one, strings.Join(entries, ", "))), Options{}); err == nil || err.Error() != "mig-configs[c]: Too many: 70: must have at most 63 items" {
		t.Errorf("more entries than a policy has rules: got %v", err)
	}
}
