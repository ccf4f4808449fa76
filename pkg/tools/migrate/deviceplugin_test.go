// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Rules that many files give.
const (
	whole         = "- {tiers: [exclusive]}\n"
	wholeAndMIG   = "- {tiers: [exclusive, mig], mig: {mode: existing}}\n"
	cut           = packed + ", placement: spread"
	packed        = "memory: {minimum: 1Mi, step: 1Mi}"
	failOnTwo     = "sharing.timeSlicing.failRequestsGreaterThanOne: false (default)"
	memoryCounted = "sharing.timeSlicing: "
	noStrategy    = "flags.migStrategy: none (default)"
	uuidA, uuidB  = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c", "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16d"
)

func slicesOf(match string, shares int) string {
	return fmt.Sprintf("- {%stiers: [timeSlice], timeSlice: {shares: %d, %s}}\n", match, shares, cut)
}

func TestDevicePlugin_Fields(t *testing.T) {
	wholeClass := map[string]string{wholeResource: `.type == "gpu"`}
	tests := map[string]struct {
		body  string
		rules string
		// classes and notes
		classes map[string]string
		notes   []string
	}{
		"version alone":            {"", whole, wholeClass, nil},
		"empty sections":           {"flags: {}\nresources: {}\nsharing: {}\nimex: {}", whole, wholeClass, nil},
		"null sections":            {"flags:\nresources:\nsharing:\nimex:", whole, wholeClass, nil},
		"strategy none":            {"flags: {migStrategy: none}", whole, wholeClass, nil},
		"strategy single":          {"flags: {migStrategy: single}", wholeAndMIG, map[string]string{wholeResource: `((.type == "gpu") || (.type == "mig"))`}, []string{"flags.migStrategy: single"}},
		"strategy mixed":           {"flags: {migStrategy: mixed}", wholeAndMIG, map[string]string{wholeResource: `.type == "gpu"`, "mixed": "all profiles"}, []string{"flags.migStrategy: mixed"}},
		"time slices":              {"sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}", slicesOf("", 10), map[string]string{wholeResource: `.type == "timeslice"`}, []string{failOnTwo, memoryCounted}},
		"devices all":              {"sharing: {timeSlicing: {resources: [{name: gpu, devices: all, replicas: 2}]}}", slicesOf("", 2), map[string]string{wholeResource: `.type == "timeslice"`}, []string{failOnTwo, memoryCounted}},
		"renamed by default":       {"sharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 10}]}}", slicesOf("", 10), map[string]string{"nvidia.com/gpu.shared": `.type == "timeslice"`}, []string{failOnTwo, memoryCounted}},
		"renamed as by default":    {"sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, rename: gpu.shared, replicas: 10}]}}", slicesOf("", 10), map[string]string{"nvidia.com/gpu.shared": `.type == "timeslice"`}, []string{failOnTwo, memoryCounted}},
		"at most one":              {"sharing: {timeSlicing: {failRequestsGreaterThanOne: true, resources: [{name: gpu, replicas: 2}]}}", slicesOf("", 2), map[string]string{wholeResource: `.type == "timeslice"`}, []string{"sharing.timeSlicing.failRequestsGreaterThanOne: true", memoryCounted}},
		"time slices are bounded":  {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 1001}]}}", slicesOf("", 1000), map[string]string{wholeResource: `.type == "timeslice"`}, []string{failOnTwo, memoryCounted, "sharing.timeSlicing.resources[0].replicas: 1001"}},
		"the most that 64 bits do": {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 9223372036854775807}]}}", slicesOf("", 1000), map[string]string{wholeResource: `.type == "timeslice"`}, []string{failOnTwo, memoryCounted, "sharing.timeSlicing.resources[0].replicas: 9223372036854775807"}},
		"one replica of the first": {"sharing: {timeSlicing: {resources: [{name: gpu, devices: [0], replicas: 1}, {name: gpu, devices: [1], replicas: 2}]}}", slicesOf("match: {indexes: [1]}, ", 2) + whole, map[string]string{wholeResource: `((.type == "timeslice" && .index in [1]) || (.type == "gpu"))`}, []string{"sharing.timeSlicing.resources[0].replicas: 1", failOnTwo, memoryCounted, "sharing.timeSlicing.resources[1].devices: [1]"}},
		"MPS":                      {"sharing: {mps: {resources: [{name: gpu, replicas: 48}]}}", "- {tiers: [mps], mps: {shares: 48, " + cut + "}}", map[string]string{wholeResource: `.type == "mps"`}, []string{"sharing.mps.failRequestsGreaterThanOne: true (default)"}},
		"MPS, renamed": {"sharing: {mps: {renameByDefault: true, failRequestsGreaterThanOne: false, resources: [{name: gpu, replicas: 2}]}}", "- {tiers: [mps], mps: {shares: 2, " + cut + "}}",
			map[string]string{"nvidia.com/gpu.shared": `.type == "mps"`}, []string{"sharing.mps.failRequestsGreaterThanOne: false"}},
		"MPS is bounded": {"sharing: {mps: {resources: [{name: gpu, replicas: 61}]}}", "- {tiers: [mps], mps: {shares: 60, " + cut + "}}", map[string]string{wholeResource: `.type == "mps"`},
			[]string{"sharing.mps.failRequestsGreaterThanOne: true (default)", "sharing.mps.resources[0].replicas: 61", "sharing.mps.resources[0].replicas: 61"}},
		"MPS of new drivers": {"sharing: {mps: {resources: [{name: gpu, replicas: 49}]}}", "- {tiers: [mps], mps: {shares: 49, " + cut + "}}", map[string]string{wholeResource: `.type == "mps"`},
			[]string{"sharing.mps.failRequestsGreaterThanOne: true (default)", "sharing.mps.resources[0].replicas: 49"}},
		"renamed": {"sharing: {timeSlicing: {resources: [{name: gpu, rename: gpu-light, replicas: 2}]}}", slicesOf("", 2),
			map[string]string{"nvidia.com/gpu-light": `.type == "timeslice"`, wholeResource: `.type == "timeslice"`}, []string{failOnTwo, memoryCounted, "sharing.timeSlicing.resources[0].rename: nvidia.com/gpu-light"}},
		"renamed twice over": {"sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, rename: gpu-light, replicas: 2}]}}", slicesOf("", 2),
			map[string]string{"nvidia.com/gpu-light": `.type == "timeslice"`, "nvidia.com/gpu.shared": `.type == "timeslice"`}, []string{failOnTwo, memoryCounted, "sharing.timeSlicing.resources[0].rename: nvidia.com/gpu-light"}},
		"a number of devices": {"sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, devices: 2, replicas: 4}]}}", slicesOf("match: {indexes: [0, 1]}, ", 4) + whole,
			map[string]string{wholeResource: `.type == "gpu"`, "nvidia.com/gpu.shared": `.type == "timeslice" && .index in [0, 1]`},
			[]string{failOnTwo, memoryCounted, "sharing.timeSlicing.resources[0].devices: 2", "sharing.timeSlicing.resources[0].devices: 2"}},
		"indexes and UUIDs": {fmt.Sprintf("sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, devices: [3, '0', %s], replicas: 4}]}}", uuidA),
			slicesOf("match: {indexes: [3, 0]}, ", 4) + slicesOf("match: {uuids: ["+uuidA+"]}, ", 4) + whole,
			map[string]string{wholeResource: `.type == "gpu"`, "nvidia.com/gpu.shared": `.type == "timeslice" && (.index in [3, 0] || .uuid in ["` + uuidA + `"])`},
			[]string{failOnTwo, memoryCounted, `sharing.timeSlicing.resources[0].devices: [3,"0","` + uuidA + `"]`}},
		"some shared under the same name": {"sharing: {timeSlicing: {resources: [{name: gpu, devices: [0], replicas: 4}]}}", slicesOf("match: {indexes: [0]}, ", 4) + whole,
			map[string]string{wholeResource: `((.type == "timeslice" && .index in [0]) || (.type == "gpu"))`},
			[]string{failOnTwo, memoryCounted, "sharing.timeSlicing.resources[0].devices: [0]"}},
		"several ways": {fmt.Sprintf("sharing: {timeSlicing: {resources: [{name: gpu, rename: light, devices: [0], replicas: 2}, {name: gpu, rename: heavy, devices: [%s], replicas: 8}]}}", uuidB),
			slicesOf("match: {indexes: [0]}, ", 2) + slicesOf("match: {uuids: ["+uuidB+"]}, ", 8) + whole,
			map[string]string{wholeResource: `.type == "gpu"`, "nvidia.com/light": `.type == "timeslice" && .index in [0]`, "nvidia.com/heavy": `.type == "timeslice" && .uuid in ["` + uuidB + `"]`},
			[]string{failOnTwo, memoryCounted, "sharing.timeSlicing.resources[0].rename: nvidia.com/light", "sharing.timeSlicing.resources[0].devices: [0]",
				"sharing.timeSlicing.resources[1].rename: nvidia.com/heavy", `sharing.timeSlicing.resources[1].devices: ["` + uuidB + `"]`}},
		"partitions, shared": {"flags: {migStrategy: mixed}\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/mig-1g.10gb, replicas: 2}]}}",
			"- {tiers: [exclusive, mig], mig: {mode: existing, share: [{profile: 1g.10gb, timeSlice: {shares: 2, " + cut + "}}]}}",
			map[string]string{wholeResource: `.type == "gpu"`, "mixed": "all profiles", "nvidia.com/mig-1g.10gb.shared": `.type == "mig-timeslice" && .profile == "1g.10gb"`},
			[]string{"flags.migStrategy: mixed", failOnTwo, memoryCounted, "sharing.timeSlicing.resources[0]: nvidia.com/mig-1g.10gb"}},
		"partitions and GPUs, shared by MPS": {"flags: {migStrategy: mixed}\nsharing: {mps: {resources: [{name: gpu, replicas: 4}, {name: nvidia.com/mig-1g.10gb.me, rename: nvidia.com/media, replicas: 3}]}}",
			"- {tiers: [mps, mig], mig: {mode: existing, share: [{profile: 1g.10gb+me, mps: {shares: 3, " + cut + "}}]}, mps: {shares: 4, " + cut + "}}",
			map[string]string{wholeResource: `.type == "mps"`, "mixed": "all profiles", "nvidia.com/media": `.type == "mig-mps" && .profile == "1g.10gb+me"`,
				"nvidia.com/mig-1g.10gb.me": `.type == "mig-mps" && .profile == "1g.10gb+me"`},
			[]string{"flags.migStrategy: mixed", "sharing.mps.failRequestsGreaterThanOne: true (default)", "sharing.mps.resources[1].rename: nvidia.com/media",
				"sharing.mps.resources[1]: nvidia.com/mig-1g.10gb.me"}},
		"distributed": {"flags: {migStrategy: mixed, plugin: {sharedDevicesAllocationPolicy: distributed}}\nsharing: {mps: {resources: [{name: gpu, replicas: 4}, {name: nvidia.com/mig-1g.10gb, replicas: 3}]}}",
			"- {tiers: [mps, mig], mig: {mode: existing, share: [{profile: 1g.10gb, mps: {shares: 3, " + cut + "}}]}, mps: {shares: 4, " + cut + "}}",
			map[string]string{wholeResource: `.type == "mps"`, "mixed": "all profiles", "nvidia.com/mig-1g.10gb": `.type == "mig-mps" && .profile == "1g.10gb"`},
			[]string{"flags.plugin.sharedDevicesAllocationPolicy: distributed", "flags.migStrategy: mixed", "sharing.mps.failRequestsGreaterThanOne: true (default)",
				"sharing.mps.resources[1]: nvidia.com/mig-1g.10gb"}},
		"packed": {"flags: {migStrategy: mixed, plugin: {sharedDevicesAllocationPolicy: packed}}\nsharing: {mps: {resources: [{name: gpu, replicas: 4}, {name: nvidia.com/mig-1g.10gb, replicas: 3}]}}",
			"- {tiers: [mps, mig], mig: {mode: existing, share: [{profile: 1g.10gb, mps: {shares: 3, " + packed + "}}]}, mps: {shares: 4, " + packed + "}}",
			map[string]string{wholeResource: `.type == "mps"`, "mixed": "all profiles", "nvidia.com/mig-1g.10gb": `.type == "mig-mps" && .profile == "1g.10gb"`},
			[]string{"flags.migStrategy: mixed", "sharing.mps.failRequestsGreaterThanOne: true (default)",
				"sharing.mps.resources[1]: nvidia.com/mig-1g.10gb"}},
		"partitions by index": {"flags: {migStrategy: mixed}\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/mig-1g.10gb, devices: ['0:1'], replicas: 2}]}}", wholeAndMIG,
			map[string]string{wholeResource: `.type == "gpu"`, "mixed": "all profiles", "nvidia.com/mig-1g.10gb.shared": `.type == "mig" && .profile == "1g.10gb"`},
			[]string{"flags.migStrategy: mixed", failOnTwo, memoryCounted, `sharing.timeSlicing.resources[0].devices: ["0:1"]`, "sharing.timeSlicing.resources[0]: nvidia.com/mig-1g.10gb"}},
		"single, shared": {"flags: {migStrategy: single}\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}", "- {tiers: [mps, mig], mig: {mode: existing}, mps: {shares: 2, " + cut + "}}",
			map[string]string{wholeResource: `((.type == "mps") || (.type == "mig"))`},
			[]string{"flags.migStrategy: single", "sharing.mps.failRequestsGreaterThanOne: true (default)", "sharing.mps.resources[0]: nvidia.com/gpu"}},
		"a resource of nothing": {"sharing: {timeSlicing: {resources: [{name: nvidia.com/mig-1g.10gb, replicas: 2}]}}", whole, wholeClass,
			[]string{failOnTwo, memoryCounted, "sharing.timeSlicing.resources[0].name: nvidia.com/mig-1g.10gb"}},
		"products": {"resources: {gpus: [{pattern: 'A100-SXM4-40GB', name: a100}, {pattern: '*H100*', name: h100}, {pattern: 'A*40', name: nvidia.com/a-40}]}",
			"- {match: {productNames: [A100-SXM4-40GB]}, tiers: [exclusive]}\n" + whole, map[string]string{
				wholeResource: `.type == "gpu"`, "nvidia.com/a100": `.type == "gpu" && "productName" in  && .productName.contains("A100-SXM4-40GB")`,
				"nvidia.com/h100": `.type == "gpu" && "productName" in  && .productName.contains("H100")`, "nvidia.com/a-40": `.type == "gpu" && "productName" in  && .productName.matches("A.*40")`,
			}, []string{`resources.gpus[0]: {"pattern":"A100-SXM4-40GB","name":"nvidia.com/a100"}`, `resources.gpus[1]: {"pattern":"*H100*","name":"nvidia.com/h100"}`, `resources.gpus[2]: {"pattern":"A*40","name":"nvidia.com/a-40"}`}},
		"products, shared": {"resources: {gpus: [{pattern: 'NVIDIA A30', name: a30}, {pattern: 'NVIDIA H*', name: h}]}\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: a30, replicas: 3}, {name: h, replicas: 4}]}}",
			slicesOf("match: {productNames: [NVIDIA A30]}, ", 3) + whole, map[string]string{
				wholeResource:           `((.type == "timeslice" && "productName" in  && .productName.contains("NVIDIA A30")) || (.type == "gpu"))`,
				"nvidia.com/a30.shared": `.type == "timeslice" && "productName" in  && .productName.contains("NVIDIA A30")`,
				"nvidia.com/h.shared":   `.type == "gpu" && "productName" in  && .productName.contains("NVIDIA H")`,
			}, []string{`resources.gpus[0]: {"pattern":"NVIDIA A30","name":"nvidia.com/a30"}`, `resources.gpus[1]: {"pattern":"NVIDIA H*","name":"nvidia.com/h"}`, failOnTwo, memoryCounted,
				"resources.gpus[0].pattern: NVIDIA A30", "resources.gpus[1].pattern: NVIDIA H*"}},
		"all products": {"resources: {gpus: [{pattern: '*', name: accelerator}]}", whole, map[string]string{wholeResource: `.type == "gpu"`, "nvidia.com/accelerator": `.type == "gpu"`},
			[]string{`resources.gpus[0]: {"pattern":"*","name":"nvidia.com/accelerator"}`}},
		"profiles": {"flags: {migStrategy: single}\nresources: {mig: [{pattern: '1g.*', name: small}]}", wholeAndMIG,
			map[string]string{wholeResource: `((.type == "gpu") || (.type == "mig"))`, "nvidia.com/small": `.type == "mig" && .profile.contains("1g.")`},
			[]string{"flags.migStrategy: single", `resources.mig[0]: {"pattern":"1g.*","name":"nvidia.com/small"}`}},
		"profiles, strategy mixed": {"flags: {migStrategy: mixed}\nresources: {mig: [{pattern: '1g.5gb', name: small}]}", wholeAndMIG,
			map[string]string{wholeResource: `.type == "gpu"`, "mixed": "all profiles", "nvidia.com/small": `.type == "mig" && .profile.contains("1g.5gb")`},
			[]string{"flags.migStrategy: mixed", `resources.mig[0]: {"pattern":"1g.5gb","name":"nvidia.com/small"}`}},
		"profiles, strategy none": {"resources: {mig: [{pattern: '*', name: small}]}", whole, wholeClass, []string{`resources.mig[0]: {"pattern":"*","name":"nvidia.com/small"}`}},
		"IMEX":                    {"imex: {channelIDs: [0], required: true}", whole, wholeClass, []string{"imex.channelIDs: [0]"}},
		"no IMEX":                 {"imex: {channelIDs: [], required: true}", whole, wholeClass, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			i, err := DevicePlugin([]byte("version: v1\n"+tt.body), Options{})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(tt.body, "migStrategy") {
				tt.notes = append([]string{noStrategy}, tt.notes...)
			}
			check(t, i, outcome{map[string]string{"default": tt.rules}, tt.classes, tt.notes})
		})
	}
}

func TestDevicePlugin_FlagNotes(t *testing.T) {
	for flag, tt := range map[string]struct {
		noted, passed string // passed is empty where every value is noted
	}{
		"failOnInitError":                      {"true", ""},
		"mpsRoot":                              {"/run/nvidia/mps", "''"},
		"nvidiaDriverRoot":                     {"/run/nvidia/driver", "/"},
		"nvidiaDevRoot":                        {"/run/nvidia/driver", "/"},
		"gdrcopyEnabled":                       {"true", "false"},
		"gdsEnabled":                           {"true", "false"},
		"mofedEnabled":                         {"true", "false"},
		"useNodeFeatureAPI":                    {"true", "false"},
		"deviceDiscoveryStrategy":              {"tegra", "auto"},
		"plugin.passDeviceSpecs":               {"true", "false"},
		"plugin.deviceListStrategy":            {"envvar", "cdi-cri"},
		"plugin.deviceIDStrategy":              {"index", "uuid"},
		"plugin.cdiAnnotationPrefix":           {"cdi.k8s.io/", "''"},
		"plugin.nvidiaCTKPath":                 {"/usr/bin/nvidia-ctk", "''"},
		"plugin.containerDriverRoot":           {"/driver-root", "''"},
		"plugin.kubeletSocket":                 {"/var/lib/kubelet/device-plugins/kubelet.sock", "''"},
		"plugin.cdiFeatureFlags":               {"enable-coherent-annotations", "''"},
		"plugin.sharedDevicesAllocationPolicy": {"distributed", "packed"},
		"gfd.oneshot":                          {"false", ""},
		"gfd.noTimestamp":                      {"true", ""},
		"gfd.sleepInterval":                    {"60s", ""},
		"gfd.outputFile":                       {"/etc/features", ""},
		"gfd.machineTypeFile":                  {"/sys/type", ""},
	} {
		for _, value := range []string{tt.noted, tt.passed, "null"} {
			group, name, ok := strings.Cut(flag, ".")
			text := fmt.Sprintf("version: v1\nflags: {%s: %s}", flag, value)
			if ok {
				text = fmt.Sprintf("version: v1\nflags: {%s: {%s: %s}}", group, name, value)
			}
			i, err := DevicePlugin([]byte(text), Options{})
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			want := []string{noStrategy}
			if value == tt.noted {
				want = []string{"flags." + flag + ": " + value, noStrategy}
			}
			var got []string
			for _, n := range i.Notes {
				got = append(got, n.Field+": "+n.Value)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: notes (-want +got):\n%s", text, diff)
			}
		}
	}
}

func TestDevicePlugin_Errors(t *testing.T) {
	const shared = "version: v1\nsharing: {timeSlicing: {resources: [%s]}}"
	tests := map[string]struct {
		text string
		want []string
	}{
		"another version": {"version: v2", []string{`version: Unsupported value: "v2": supported values: "v1"`}},
		"a number":        {"version: 1", []string{"version: Invalid value: must be text, not a whole number: put it in quotes"}},
		"unknown section": {"version: v1\nbanana: 1", []string{`unknown field "banana"`}},
		"unknown flag":    {"version: v1\nflags: {migstrategy: mixed}", []string{`unknown field "flags.migstrategy": did you mean flags.migStrategy?`}},
		"renameByDefault elsewhere": {"version: v1\nsharing: {renameByDefault: true, timeSlicing: {resources: [{name: gpu, replicas: 2, renameByDefault: true}]}}", []string{
			`unknown field "sharing.renameByDefault": did you mean sharing.mps.renameByDefault or sharing.timeSlicing.renameByDefault?`,
			`unknown field "sharing.timeSlicing.resources[0].renameByDefault": did you mean sharing.mps.renameByDefault or sharing.timeSlicing.renameByDefault?`,
		}},
		"a plugin's flag elsewhere": {"version: v1\nflags: {passDeviceSpecs: true}", []string{`unknown field "flags.passDeviceSpecs": did you mean flags.plugin.passDeviceSpecs?`}},
		"a key twice":               {"version: v1\nversion: v1", []string{`read YAML: yaml: unmarshal errors: line 2: key "version" already set in map`}},
		"a ConfigMap": {"apiVersion: v1\nkind: ConfigMap\ndata: {config.yaml: 'version: v1'}", []string{
			`apiVersion: it is a Kubernetes object, of which only a ConfigMap can be imported`}},
		"values of the operator":       {"devicePlugin: {config: {name: c}}\ndriver: {}\nmig: {strategy: mixed}", []string{"they are values of the GPU operator's Helm chart: import the ConfigMap that devicePlugin.config.name or migManager.config.name names"}},
		"values of the plugin's chart": {"config: {map: {default: 'version: v1'}}", []string{"they are values of the device plugin's Helm chart: import each entry of config.map as a file of its own"}},
		"a template":                   {"version: v1\nsharing: {{ .Values.sharing }}\n", []string{`it is a template of a Helm chart, which helm template fills: read YAML: yaml: invalid map key: map[interface {}]interface {}{".Values.sharing":interface {}(nil)}`}},
		"an object by halves":          {"kind: ConfigMap\nmetadata: {name: c}\n", []string{"it is a Kubernetes object without apiVersion: a ConfigMap has apiVersion: v1"}},
		"a list":                       {"[version, v1]", []string{"want an object with version: v1"}},
		"nothing":                      {"", []string{"the file is empty"}},
		"comments":                     {"# nothing\n---\n# at all\n", []string{"the file is empty"}},
		"several documents":            {"version: v1\n---\nversion: v1\n", []string{"there are several documents, the second at line 2: import each alone"}},
		"a binary":                     {"\x7fELF\x02\x01\x01\x00", []string{"read YAML: yaml: control characters are not allowed"}},
		"no text":                      {"version: v1 # \xff", []string{"read YAML: it is no UTF-8 text"}},
		"strategy":                     {"version: v1\nflags: {migStrategy: Mixed}", []string{`flags.migStrategy: Unsupported value: "Mixed": supported values: "none", "single", "mixed"`}},
		"a flag of another type":       {"version: v1\nflags: {failOnInitError: 'yes'}", []string{"flags.failOnInitError: Invalid value: must be true or false, not text"}},
		"both ways":                    {"version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}, mps: {resources: [{name: gpu, replicas: 2}]}}", []string{"sharing: Forbidden: timeSlicing and mps exclude each other in the device plugin: remove one"}},
		"no resources":                 {"version: v1\nsharing: {timeSlicing: {renameByDefault: true}}", []string{"sharing.timeSlicing.resources: Required value: name one, such as {name: nvidia.com/gpu, replicas: 4}"}},
		"nothing of a resource":        {fmt.Sprintf(shared, "{}"), []string{"sharing.timeSlicing.resources[0].name: Required value: want a resource such as nvidia.com/gpu", "sharing.timeSlicing.resources[0].replicas: Required value: say how many shares"}},
		"no replica":                   {fmt.Sprintf(shared, "{name: gpu, replicas: 0}"), []string{"sharing.timeSlicing.resources[0].replicas: Invalid value: 0: must be 1 or more"}},
		"too many to count":            {fmt.Sprintf(shared, "{name: gpu, replicas: 1e30}"), []string{"sharing.timeSlicing.resources[0].replicas: Invalid value: must be a whole number, not the number 1e+30"}},
		"no resource's name":           {fmt.Sprintf(shared, "{name: $gpu$, replicas: 2}"), []string{"sharing.timeSlicing.resources[0].name: Invalid value: \"$gpu$\": must be a resource such as nvidia.com/gpu: lower-case letters, digits, '-' and '.', 63 at most with nvidia.com/ in front"}},
		"another vendor":               {fmt.Sprintf(shared, "{name: example.com/gpu, replicas: 2}"), []string{"sharing.timeSlicing.resources[0].name: Invalid value: \"example.com/gpu\": must be a resource such as nvidia.com/gpu: lower-case letters, digits, '-' and '.', 63 at most with nvidia.com/ in front"}},
		"a long name":                  {fmt.Sprintf(shared, "{name: gpu, rename: "+strings.Repeat("a", 53)+", replicas: 2}"), []string{"sharing.timeSlicing.resources[0].rename: Invalid value: \"" + strings.Repeat("a", 53) + "\": must be a resource such as nvidia.com/gpu: lower-case letters, digits, '-' and '.', 63 at most with nvidia.com/ in front"}},
		"some devices":                 {fmt.Sprintf(shared, "{name: gpu, devices: some, replicas: 2}"), []string{`sharing.timeSlicing.resources[0].devices: Invalid value: "some": must be "all", a number of devices, or a list of indexes and UUIDs`}},
		"no device":                    {fmt.Sprintf(shared, "{name: gpu, devices: [], replicas: 2}"), []string{"sharing.timeSlicing.resources[0].devices: Required value: name a device, or leave devices out for all"}},
		"zero devices":                 {fmt.Sprintf(shared, "{name: gpu, devices: 0, replicas: 2}"), []string{"sharing.timeSlicing.resources[0].devices: Invalid value: 0: must be 1 to 64"}},
		"a million devices":            {fmt.Sprintf(shared, "{name: gpu, devices: 1000000, replicas: 2}"), []string{"sharing.timeSlicing.resources[0].devices: Invalid value: 1000000: must be 1 to 64"}},
		"devices, an object":           {fmt.Sprintf(shared, "{name: gpu, devices: {all: true}, replicas: 2}"), []string{`sharing.timeSlicing.resources[0].devices: Invalid value: must be "all", a number of devices, or a list of indexes and UUIDs`}},
		"devices that are none": {fmt.Sprintf(shared, "{name: gpu, devices: [-1, GPU-1, 1.5, 99999999999, '01', 1], replicas: 2}"), []string{
			"sharing.timeSlicing.resources[0].devices[0]: Invalid value: -1: must be the index of a GPU such as 0, of a partition such as 0:1, or a UUID as nvidia-smi -L has it",
			`sharing.timeSlicing.resources[0].devices[1]: Invalid value: "GPU-1": must be the index of a GPU such as 0, of a partition such as 0:1, or a UUID as nvidia-smi -L has it`,
			"sharing.timeSlicing.resources[0].devices[2]: Invalid value: 1.5: must be the index of a GPU such as 0, of a partition such as 0:1, or a UUID as nvidia-smi -L has it",
			"sharing.timeSlicing.resources[0].devices[3]: Invalid value: 99999999999: must be the index of a GPU such as 0, of a partition such as 0:1, or a UUID as nvidia-smi -L has it",
			"sharing.timeSlicing.resources[0].devices[5]: Duplicate value: 1",
		}},
		"more devices than a node has": {fmt.Sprintf(shared, "{name: gpu, devices: ["+strings.Repeat("1,", 257)+"], replicas: 2}"), []string{"sharing.timeSlicing.resources[0].devices: Too many: 257: must have at most 256 items"}},
		"more resources than rules":    {fmt.Sprintf(shared, strings.Repeat("{name: gpu, replicas: 2},", 65)), []string{"sharing.timeSlicing.resources: Too many: 65: must have at most 64 items"}},
		"more patterns than rules":     {"version: v1\nresources: {mig: [" + strings.Repeat("{name: a, pattern: a},", 65) + "]}", []string{"resources.mig: Too many: 65: must have at most 64 items"}},
		"shared twice":                 {fmt.Sprintf(shared, "{name: gpu, replicas: 2}, {name: nvidia.com/gpu, rename: b, replicas: 3}"), []string{`sharing.timeSlicing.resources[1]: Invalid value: "nvidia.com/gpu": some of its devices are shared by resources[0] already`}},
		"a device shared twice":        {fmt.Sprintf(shared, "{name: gpu, devices: 2, replicas: 2}, {name: gpu, devices: [1], replicas: 3}"), []string{`sharing.timeSlicing.resources[1]: Invalid value: "nvidia.com/gpu": device 1 is shared by resources[0] already`}},
		"a UUID shared twice":          {fmt.Sprintf(shared, "{name: gpu, devices: ["+uuidA+"], replicas: 2}, {name: gpu, devices: ["+uuidA+"], replicas: 3}"), []string{`sharing.timeSlicing.resources[1]: Invalid value: "nvidia.com/gpu": device ` + uuidA + ` is shared by resources[0] already`}},
		"a pattern of nothing":         {"version: v1\nresources: {gpus: [{name: a}]}", []string{"resources.gpus[0].pattern: Required value: want part of a product's or profile's name, or *"}},
		"a pattern of no name":         {"version: v1\nresources: {mig: [{pattern: a}]}", []string{"resources.mig[0].name: Required value: want a resource such as nvidia.com/gpu"}},
		"a pattern twice":              {"version: v1\nresources: {gpus: [{pattern: a, name: a}, {pattern: a, name: b}]}", []string{`resources.gpus[1].pattern: Duplicate value: "a"`}},
		"a pattern without end":        {"version: v1\nresources: {gpus: [{pattern: " + strings.Repeat("a", 257) + ", name: a}]}", []string{"resources.gpus[0].pattern: Too long: may not be more than 256 bytes"}},
		"null in a list":               {"version: v1\nresources: {gpus: [null]}", []string{"resources.gpus[0]: Required value: null is no value"}},
		"channels that are none":       {"version: v1\nimex: {channelIDs: [one]}", []string{"imex.channelIDs[0]: Invalid value: must be a whole number, not text"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			i, err := DevicePlugin([]byte(tt.text), Options{})
			if diff := cmp.Diff(tt.want, problems(err)); diff != "" || i != nil {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
	large := []byte("version: v1 #" + strings.Repeat("x", 1<<20))
	if _, err := DevicePlugin(large, Options{}); err == nil || err.Error() != fmt.Sprintf("%d bytes are more than 1048576", len(large)) {
		t.Errorf("a large file: got %v", err)
	}
}

func TestDevicePlugin_NoVersion(t *testing.T) {
	i, err := DevicePlugin([]byte("flags: {migStrategy: none}"), Options{Name: "training"})
	if err != nil || i.Policies[0].Metadata.Name != "training" {
		t.Errorf("got %v, %v", i, err)
	}
	i, err = DevicePlugin([]byte("version: v1"), Options{Name: "Training_A"})
	if err != nil || i.Policies[0].Metadata.Name != "training-a" || !strings.Contains(i.Notes[0].String(), "Training_A: the policy is named training-a") {
		t.Errorf("a name with capitals: got %v, %v", i, err)
	}
	if _, err := DevicePlugin([]byte("version: v1"), Options{Name: "a b"}); err == nil || !strings.Contains(err.Error(), "metadata.name") {
		t.Errorf("a name that is none: got %v", err)
	}
}

func TestDevicePlugin_SeveralFiles(t *testing.T) {
	read := func(name, body string) *Import {
		i, err := DevicePlugin([]byte("version: v1\n"+body), Options{Name: name, File: name + ".yaml"})
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	all := read("whole", "flags: {gdsEnabled: true}")
	for _, other := range []*Import{
		read("notebooks", "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 8}]}}"), read("also-whole", "flags: {gdsEnabled: true}"),
	} {
		if err := all.Add(other); err != nil {
			t.Fatal(err)
		}
	}
	check(t, all, outcome{
		map[string]string{"whole": whole, "also-whole": whole, "notebooks": slicesOf("", 8)},
		map[string]string{wholeResource: `((.type == "gpu") || (.type == "timeslice"))`},
		[]string{"flags.gdsEnabled: true", noStrategy, noStrategy, failOnTwo, memoryCounted, "flags.gdsEnabled: true", noStrategy},
	})
	var names []string
	for _, p := range all.Policies {
		names = append(names, p.Metadata.Name)
	}
	if diff := cmp.Diff([]string{"also-whole", "notebooks", "whole"}, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	for policy, want := range map[string]string{"whole": "# - whole.yaml: flags.gds", "notebooks": "# - notebooks.yaml: sharing", "also-whole": "# - also-whole.yaml: flags.gds"} {
		for _, p := range all.Policies {
			var out strings.Builder
			if err := all.WriteComments(&out, p); err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(out.String(), want); got != (p.Metadata.Name == policy) {
				t.Errorf("comments of policy %s: %q is there: %t", p.Metadata.Name, want, got)
			}
		}
	}
	if err := all.Add(read("whole", "")); err == nil || !strings.Contains(err.Error(), `another file has a policy "whole", too`) {
		t.Errorf("a name twice: got %v", err)
	}
}

// The strategy of a ClusterPolicy comes before the file's.
func TestDevicePlugin_MIGStrategy(t *testing.T) {
	mixed := outcome{map[string]string{"default": wholeAndMIG}, map[string]string{wholeResource: `.type == "gpu"`, "mixed": "all profiles"},
		[]string{"flags.migStrategy: none", "flags.migStrategy: mixed"}}
	for _, tt := range []struct {
		text, strategy string
		want           outcome
	}{
		{"version: v1\nflags: {migStrategy: none}", "mixed", mixed},
		{"version: v1", "mixed", mixed},
		{"version: v1\nflags: {migStrategy: mixed}", "none", outcome{map[string]string{"default": whole}, map[string]string{wholeResource: `.type == "gpu"`}, []string{"flags.migStrategy: mixed"}}},
		{"version: v1", "none", outcome{map[string]string{"default": whole}, map[string]string{wholeResource: `.type == "gpu"`}, nil}},
	} {
		i, err := DevicePlugin([]byte(tt.text), Options{MIGStrategy: tt.strategy})
		if err != nil {
			t.Fatal(err)
		}
		check(t, i, tt.want)
	}
	if _, err := DevicePlugin([]byte("version: v1"), Options{MIGStrategy: "double"}); err == nil || !strings.Contains(err.Error(), `flags.migStrategy: Unsupported value: "double"`) {
		t.Errorf("a strategy that is none: got %v", err)
	}
}

func TestDevicePlugin_DriverName(t *testing.T) {
	i, err := DevicePlugin([]byte("version: v1"), Options{Driver: "gpu.nvidia.com"})
	if err != nil {
		t.Fatal(err)
	}
	want := `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`
	if got := i.Classes()[0].Spec.Selectors[0].CEL.Expression; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
