// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/sim/simulated"
	"github.com/cleave-dra/cleave/pkg/tools/admission"
)

const (
	policyHead   = "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\n"
	claimHead    = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c, namespace: team}\n"
	templateHead = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {name: t}\n"
	classHead    = "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: mine.example.com}\n"
)

// claim asks for a device with these fields of exactly.
func claim(exactly string) string {
	return claimHead + "spec: {devices: {requests: [{name: gpu, exactly: {" + exactly + "}}]}}\n"
}

// directory writes files and returns their directory.
func directory(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// node is a node of a model.
func node(t *testing.T, name string) *Node {
	t.Helper()
	session, err := simulated.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Close(); err != nil {
		t.Fatal(err)
	}
	return &Node{Words: "an " + name, GPUs: session.Node(), Model: true}
}

// checked is what was found in all files, with paths as they are in dir.
type checked struct {
	Problems, Notes, Checked, PassedOver []string
}

func check(t *testing.T, dir string, o Options, paths ...string) checked {
	t.Helper()
	if o.Rules.Driver == "" {
		o.Rules = admission.DefaultRules()
	}
	if len(paths) == 0 {
		paths = []string{"."}
	}
	for i, p := range paths {
		if p != "-" {
			paths[i] = filepath.Join(dir, p)
		}
	}
	files, err := Files(t.Context(), paths, o)
	if err != nil {
		t.Fatal(err)
	}
	var all checked
	for _, f := range files {
		for _, list := range []struct{ from, to *[]string }{{&f.Problems, &all.Problems}, {&f.Notes, &all.Notes}, {&f.Checked, &all.Checked}, {&f.PassedOver, &all.PassedOver}} {
			for _, line := range *list.from {
				if strings.ContainsAny(line, "\n\t") {
					t.Errorf("%q is not one line", line)
				}
				*list.to = append(*list.to, strings.ReplaceAll(line, dir+"/", ""))
			}
		}
	}
	return all
}

func TestFiles_Problems(t *testing.T) {
	tests := map[string]struct {
		file string
		want []string
	}{
		"a policy":           {policyHead + "rules: [{tiers: [mig]}]", nil},
		"a policy's problem": {policyHead + "metadata: {name: training}\nrules: [{mig: {layout: {banana: 1}}}]", []string{`f.yaml: policy "training": rules[0].mig.layout[banana]: Invalid value: "banana": must be the name of a MIG profile, such as 1g.10gb or 1g.10gb+me`}},
		"two of an unnamed one": {policyHead + "rules: [{mps: {shares: 0}, timeSlice: {shares: 0}}]", []string{
			`f.yaml: policy "f": rules[0].timeSlice.shares: Invalid value: 0: must be 1 to 1000`, `f.yaml: policy "f": rules[0].mps.shares: Invalid value: 0: must be 1 to 60`,
		}},
		"a kind of ours that is none": {"apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolcy\n", []string{`f.yaml: policy "f": unknown kind "NodePolcy" in gpu.cleave.dev/v1alpha1: want NodePolicy`}},
		"a version that is none":      {"apiVersion: gpu.cleave.dev/v2\nkind: NodePolicy\n", []string{`f.yaml: policy "f": unknown apiVersion "gpu.cleave.dev/v2" of kind "NodePolicy": want gpu.cleave.dev/v1alpha1`}},
		"no kind":                     {"version: v1\nsharing: {}", []string{`f.yaml: policy "f": set apiVersion and kind: apiVersion: gpu.cleave.dev/v1alpha1, kind: NodePolicy`}},
		"no YAML":                     {"a: [", []string{`f.yaml: policy "f": read YAML: yaml: line 1: did not find expected node content`}},
		"no YAML alongside a claim":   {claim("deviceClassName: gpu.cleave.dev") + "---\na: [", []string{"f.yaml: document at line 5: read YAML: yaml: line 6: did not find expected node content"}},
		"binary":                      {"\x7fELF\x00\xff", []string{"f.yaml: read YAML: it is no UTF-8 text"}},
		"empty":                       {"", []string{"f.yaml: there is nothing in it"}},
		"parameters alone":            {"apiVersion: gpu.cleave.dev/v1alpha1\nkind: ShareConfig\nmps: {priority: High}", []string{`f.yaml: ShareConfig: parameters: mps.priority: Unsupported value: "High": supported values: "Normal", "BelowNormal"`}},

		"a claim":              {claim("deviceClassName: gpu.cleave.dev, count: 2"), nil},
		"a claim of no fields": {claimHead, nil},
		"an unknown field":     {claim("deviceClasName: gpu.cleave.dev"), []string{`f.yaml: ResourceClaim team/c: unknown field "spec.devices.requests[0].exactly.deviceClasName"`, "f.yaml: ResourceClaim team/c: spec.devices.requests[0].exactly.deviceClassName: Required value: name a DeviceClass, such as gpu.cleave.dev"}},
		"a field of no type":   {claim("count: many"), []string{"f.yaml: ResourceClaim team/c: json: cannot unmarshal string into Go struct field ExactDeviceRequest.spec.devices.requests.exactly.count of type int64"}},
		"a number without end": {claim("deviceClassName: mps.cleave.dev, capacity: {requests: {memory: 1e999999999}}"), []string{`f.yaml: ResourceClaim team/c: spec.devices.requests[0].exactly.capacity.requests[memory]: Invalid value: "1e999999999": the number is out of bounds`}},
		"CEL that does not compile": {claim(`deviceClassName: gpu.cleave.dev, selectors: [{cel: {expression: "device.driver == 'x'"}}, {cel: {expression: "devic.driver"}}]`), []string{
			`f.yaml: ResourceClaim team/c: spec.devices.requests[0].exactly.selectors[1].cel.expression: Invalid value: "devic.driver": compilation failed: ERROR: <input>:1:1: undeclared reference to 'devic' (in container '') | devic.driver | ^`,
		}},
		"CEL of no truth": {claim(`deviceClassName: gpu.cleave.dev, selectors: [{cel: {expression: "1"}}]`), []string{
			`f.yaml: ResourceClaim team/c: spec.devices.requests[0].exactly.selectors[0].cel.expression: Invalid value: "1": must evaluate to bool or the unknown type, not int`,
		}},
		"no CEL":   {claim(`deviceClassName: gpu.cleave.dev, selectors: [{}, {cel: {expression: " "}}]`), []string{`f.yaml: ResourceClaim team/c: spec.devices.requests[0].exactly.selectors[0].cel.expression: Required value: write a CEL expression`, `f.yaml: ResourceClaim team/c: spec.devices.requests[0].exactly.selectors[1].cel.expression: Required value: write a CEL expression`}},
		"long CEL": {claim(`deviceClassName: gpu.cleave.dev, selectors: [{cel: {expression: "` + strings.Repeat(" ", 10<<10) + `true"}}]`), []string{`f.yaml: ResourceClaim team/c: spec.devices.requests[0].exactly.selectors[0].cel.expression: Too long: may not be more than 10240 bytes`}},
		"parameters": {templateHead + "spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: mps.cleave.dev}}], config: [{opaque: {driver: nic.example.com, parameters: {a: b}}}, " +
			"{opaque: {driver: gpu.cleave.dev, parameters: {apiVersion: gpu.cleave.dev/v1alpha1, kind: ShareConfig, mps: {shares: 1}}}}]}}}", []string{
			`f.yaml: ResourceClaimTemplate t: spec.spec.devices.config[1].opaque.parameters: Invalid value: parameters: unknown field "mps.shares"`,
		}},
		"requests that are not": {claimHead + "spec: {devices: {requests: [{name: a, exactly: {deviceClassName: x}}, {name: a, exactly: {deviceClassName: x}}, {name: b, firstAvailable: [{name: s, deviceClassName: x}]}, {}], " +
			"constraints: [{requests: [a, b/s, b/t], matchAttribute: gpu.cleave.dev/parentUUID}], config: [{requests: [c]}]}}", []string{
			`f.yaml: ResourceClaim team/c: spec.devices.requests[1].name: Duplicate value: "a"`,
			"f.yaml: ResourceClaim team/c: spec.devices.requests[3].name: Required value: name the request",
			"f.yaml: ResourceClaim team/c: spec.devices.requests[3]: Required value: set either exactly or firstAvailable",
			`f.yaml: ResourceClaim team/c: spec.devices.config[0].requests[0]: Not found: "c"`,
			"f.yaml: ResourceClaim team/c: spec.devices.config[0].opaque: Required value: give parameters to a driver",
			`f.yaml: ResourceClaim team/c: spec.devices.constraints[0].requests[2]: Not found: "b/t"`,
		}},
		"two shares of one server": {claim("deviceClassName: mps.cleave.dev, count: 2"), []string{
			"f.yaml: ResourceClaim team/c: spec.devices.requests[0].exactly.count: Invalid value: 2: class mps.cleave.dev gives one share a request; a container can use one MPS server only: ask for more of capacity cores or memory, or in several requests, for a container each",
		}},
		"a class": {classHead + "spec: {selectors: [{cel: {expression: device.driver}}], config: [{opaque: {driver: gpu.cleave.dev, parameters: {}}}]}", []string{
			"f.yaml: DeviceClass mine.example.com: spec.config[0].opaque.parameters: Invalid value: parameters: set apiVersion and kind: apiVersion: gpu.cleave.dev/v1alpha1, kind: ShareConfig",
			`f.yaml: DeviceClass mine.example.com: spec.selectors[0].cel.expression: Invalid value: "device.driver": must evaluate to bool or the unknown type, not string`,
		}},
		"a claim before v1": {strings.Replace(claim("deviceClasName: x"), "/v1", "/v1beta2", 1), []string{
			`f.yaml: ResourceClaim team/c: unknown field "spec.devices.requests[0].exactly.deviceClasName"`, "f.yaml: ResourceClaim team/c: spec.devices.requests[0].exactly.deviceClassName: Required value: name a DeviceClass, such as gpu.cleave.dev",
		}},
		"a version that is not read": {strings.Replace(claim("deviceClassName: x"), "/v1", "/v1beta1", 1), []string{
			`f.yaml: ResourceClaim team/c: apiVersion "resource.k8s.io/v1beta1" is not read: write resource.k8s.io/v1, whose requests have exactly or firstAvailable`,
		}},
		"a group that is none": {strings.Replace(claim("deviceClassName: x"), "resource.", "resources.", 1), []string{
			`f.yaml: ResourceClaim team/c: apiVersion "resources.k8s.io/v1" is not known: did you mean resource.k8s.io/v1?`,
		}},
		"a kind that is none": {strings.Replace(claim("deviceClassName: x"), "kind: ResourceClaim", "kind: ResourceClaims", 1), []string{
			`f.yaml: ResourceClaims team/c: kind "ResourceClaims" is not known: did you mean ResourceClaim?`,
		}},
		"in a list": {"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod}\n- {apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: d}, spec: {selectors: [{}]}}\n", []string{
			"f.yaml: DeviceClass d: spec.selectors[0].cel.expression: Required value: write a CEL expression",
		}},
		"in a ConfigMap": {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: policies, namespace: cleave}\ndata:\n  note: text\n  a.yaml: |\n    apiVersion: gpu.cleave.dev/v1alpha1\n    kind: NodePolicy\n    rules: [{tiers: [x]}]\n  b.yaml: 'other: text'\n", []string{
			`f.yaml: ConfigMap cleave/policies, a.yaml: policy "a": rules[0].tiers[0]: Unsupported value: "x": supported values: "exclusive", "mig", "timeSlice", "mps"`,
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := check(t, directory(t, map[string]string{"f.yaml": tt.file}), Options{})
			if diff := cmp.Diff(tt.want, got.Problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFiles_Summary(t *testing.T) {
	dir := directory(t, map[string]string{
		"a.yaml": policyHead + "---\n" + policyHead + "metadata: {name: b}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: ns}\n---\n" + claim("deviceClassName: x"),
		"b.json": `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceSlice","metadata":{"name":"old"}}`,
		"c.txt":  "not looked at",
		"d.yml":  "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {a.yaml: 'x: y'}",
	})
	want := checked{
		Checked:    []string{"ResourceClaim team/c", "NodePolicy a", "NodePolicy b"},
		PassedOver: []string{"Pod ns/p", "ResourceSlice old", "ConfigMap m"},
	}
	if diff := cmp.Diff(want, check(t, dir, Options{})); diff != "" {
		t.Errorf("a directory (-want +got):\n%s", diff)
	}
	// A file's unnamed policy is the default; names are each path's own, as the plugin is given one.
	want = checked{Checked: []string{"ResourceClaim team/c", "NodePolicy b", "NodePolicy default", "NodePolicy b"}, PassedOver: []string{"Pod ns/p"}}
	if diff := cmp.Diff(want, check(t, dir, Options{Stdin: strings.NewReader(policyHead + "metadata: {name: b}")}, "a.yaml", "-")); diff != "" {
		t.Errorf("a file and the standard input (-want +got):\n%s", diff)
	}
}

func TestFiles_PolicyOnNode(t *testing.T) {
	dir := directory(t, map[string]string{
		"a100.yaml": policyHead + "rules: [{mig: {layout: {3g.40gb: 2, 1g.10gb: 1}}}]",
		"a30.yaml":  policyHead + "rules: [{mig: {layout: {1g.6gb: 4}}}]",
		"any.yaml":  policyHead + "rules: [{tiers: [exclusive]}]",
	})
	const misfit = `a100.yaml: policy "a100": on an hgx-h100: rules[0].mig.layout: 3g.40gb ×2 and 1g.10gb ×1 do not fit an NVIDIA H100 80GB HBM3; free after 3g.40gb ×2: none`
	const lacks = `a30.yaml: policy "a30": on an hgx-h100: rules[0].mig.layout[1g.6gb]: NVIDIA H100 80GB HBM3 has no profile 1g.6gb: it has 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb`
	for name, want := range map[string][]string{"": {misfit, lacks}, "any": nil, "a30": {lacks}} {
		got := check(t, dir, Options{Node: node(t, "hgx-h100"), PolicyName: name})
		if diff := cmp.Diff(want, got.Problems); diff != "" {
			t.Errorf("policy %q (-want +got):\n%s", name, diff)
		}
	}
	shares := directory(t, map[string]string{"shares.yaml": policyHead + "rules: [{tiers: [timeSlice, mps], timeSlice: {memory: {minimum: 20Gi}}, mps: {memory: {minimum: 20Gi}}}]"})
	const why = `: the policy's minimum share of memory exceeds the 14929 MiB of the GPU: no tier of the rule offers Tesla T4`
	const rule = `shares.yaml: policy "shares": on an t4: rules[0]`
	for model, want := range map[string][]string{"hgx-h100": nil, "t4": {rule + ".timeSlice" + why, rule + ".mps" + why}} {
		if diff := cmp.Diff(want, check(t, shares, Options{Node: node(t, model)}).Problems); diff != "" {
			t.Errorf("shares on %s (-want +got):\n%s", model, diff)
		}
	}
	_, err := Files(t.Context(), []string{dir}, Options{Rules: admission.DefaultRules(), Node: node(t, "t4"), PolicyName: "ayn"})
	if err == nil || err.Error() != `there is no policy "ayn": choose one of a100, a30, any` {
		t.Errorf("a policy that is not there: got %v", err)
	}
	got := check(t, directory(t, map[string]string{"broken.yaml": "a: ["}), Options{Node: node(t, "t4"), PolicyName: "x"})
	if len(got.Problems) != 1 || !strings.Contains(got.Problems[0], "read YAML") {
		t.Errorf("a policy in a file that cannot be read: got %q", got.Problems)
	}
}

func TestFiles_ClaimOnNode(t *testing.T) {
	const layout = policyHead + "metadata: {name: default}\nrules: [{mig: {layout: {3g.40gb: 1, 1g.10gb: 4}}}]"
	no := func(request, why string) []string {
		return []string{`c.yaml: ResourceClaim team/c: spec.devices.requests[0]: Invalid value: "` + request + `": no device of an hgx-h100 fits: ` + why}
	}
	tests := map[string]struct {
		policy, claim string
		want          []string
		note          string
	}{
		"whole GPUs":                  {"", claim("deviceClassName: gpu.cleave.dev, count: 8"), nil, ""},
		"too many":                    {"", claim("deviceClassName: gpu.cleave.dev, count: 9"), no("gpu", "9 devices requested, but only 8 fit"), ""},
		"all there are":               {"", claim("deviceClassName: gpu.cleave.dev, allocationMode: All"), nil, ""},
		"a profile":                   {"", claim("deviceClassName: mig-1g.10gb.cleave.dev"), nil, ""},
		"a profile of another board":  {layout, claim("deviceClassName: mig-1g.5gb.cleave.dev"), no("gpu", "none of its devices is of class mig-1g.5gb.cleave.dev: the node offers partitions (1g.10gb, 3g.40gb)"), ""},
		"a profile not in the layout": {layout, claim("deviceClassName: mig-2g.20gb.cleave.dev"), no("gpu", "none of its devices is of class mig-2g.20gb.cleave.dev: the node offers partitions (1g.10gb, 3g.40gb)"), ""},
		"selectors":                   {"", claim(`deviceClassName: gpu.cleave.dev, selectors: [{cel: {expression: "device.attributes['gpu.cleave.dev'].productName.contains('H100')"}}]`), nil, ""},
		"selectors of another board":  {"", claim(`deviceClassName: gpu.cleave.dev, selectors: [{cel: {expression: "device.attributes['gpu.cleave.dev'].productName.contains('A100')"}}]`), no("gpu", `8 devices do not match device.attributes['gpu.cleave.dev'].productName.contains('A100'): productName is "NVIDIA H100 80GB HBM3"`), ""},
		"a selector that fails":       {"", claim(`deviceClassName: gpu.cleave.dev, selectors: [{cel: {expression: "device.attributes['gpu.cleave.dev'].profil == '1g.10gb'"}}]`), no("gpu", "the selector of request gpu reads the attribute gpu.cleave.dev/profil, which no device has: did you mean gpu.cleave.dev/profile?"), ""},
		"amounts":                     {"", claim("deviceClassName: mps.cleave.dev, capacity: {requests: {memory: 70Gi, cores: 100}}"), nil, ""},
		"too much memory":             {"", claim("deviceClassName: mps.cleave.dev, capacity: {requests: {memory: 200Gi}}"), no("gpu", "8 devices are too small: memory 200Gi requested, at most 79Gi available"), ""},
		"of the driver's name":        {"", claim("deviceClassName: mps.cleave.dev, capacity: {requests: {gpu.cleave.dev/memory: 200Gi}}"), no("gpu", "request gpu asks for the capacity gpu.cleave.dev/memory, which no device has: did you mean memory?"), ""},
		"an amount that is not":       {"", claim("deviceClassName: timeslice.cleave.dev, capacity: {requests: {copyEngines: 5}}"), no("gpu", "8 devices do not have the capacity copyEngines: they have memory, shares"), ""},
		"a tier that is not":          {policyHead + "rules: [{tiers: [exclusive]}]", claim("deviceClassName: mps.cleave.dev"), no("gpu", "none of its devices is of class mps.cleave.dev: the node offers whole GPUs"), ""},
		"nothing at all":              {policyHead + "rules: [{exclude: true}]", claim("deviceClassName: mps.cleave.dev"), no("gpu", "the node has no devices of class mps.cleave.dev"), ""},
		"the second of several":       {"", claimHead + "spec: {devices: {requests: [{name: gpu, firstAvailable: [{name: a, deviceClassName: mig-1g.5gb.cleave.dev}, {name: b, deviceClassName: mig-1g.10gb.cleave.dev}]}]}}", nil, ""},
		"none of several": {policyHead + "rules: [{tiers: [exclusive]}]", claimHead + "spec: {devices: {requests: [{name: gpu, firstAvailable: [{name: a, deviceClassName: mig.cleave.dev}, {name: b, deviceClassName: mps.cleave.dev}]}]}}",
			no("gpu", "none of its devices is of class mig.cleave.dev: the node offers whole GPUs; none of its devices is of class mps.cleave.dev: the node offers whole GPUs"), ""},
		"a class of the files": {"", claim("deviceClassName: mine.example.com") + "---\n" + classHead + `spec: {selectors: [{cel: {expression: "device.attributes['gpu.cleave.dev'].type == 'gpu'"}}]}`, nil, ""},
		"a class that fails":   {"", claim("deviceClassName: mine.example.com") + "---\n" + classHead + `spec: {selectors: [{cel: {expression: "device.attributes['gpu.cleave.dev'].profile == '1g.10gb'"}}]}`, no("gpu", "the scheduler fails: class mine.example.com: selector #0 on device gpu.cleave.dev/node/gpu-0000-df-00-0: CEL runtime error: no such key: profile. consider using CEL optional chaining (.? followed by orValue()) or guarding the check with has() for optional fields (the selector reads an attribute that a device lacks: select the type first, or use a narrower class)"), ""},
		"between two steps":    {"", claim("deviceClassName: mps.cleave.dev, capacity: {requests: {memory: 81001Mi}}"), no("gpu", "8 devices are too small: memory 81001Mi requested, at most 79Gi available"), ""},
		"not together": {"", claimHead + "spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu.cleave.dev, count: 5}}, {name: b, exactly: {deviceClassName: gpu.cleave.dev, count: 4}}]}}", []string{
			"c.yaml: ResourceClaim team/c: spec.devices: Invalid value: not allocated on an hgx-h100: each request fits on its own, but not all together",
		}, ""},
		"a class of nobody": {"", claim("deviceClassName: nic.example.com"), nil, `c.yaml: ResourceClaim team/c: spec.devices.requests[0].exactly.deviceClassName: DeviceClass "nic.example.com" is neither in these files nor one of Cleave's: not checked against an hgx-h100`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{"c.yaml": tt.claim}
			if tt.policy != "" {
				files["default.yaml"] = tt.policy
			}
			got := check(t, directory(t, files), Options{Node: node(t, "hgx-h100")})
			if diff := cmp.Diff(tt.want, got.Problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			if note := strings.Join(got.Notes, "; "); note != tt.note {
				t.Errorf("notes: got %q, want %q", note, tt.note)
			}
		})
	}
}

// On Ampere an admin puts GPUs into MIG mode; a model is taken to be as the policy needs it.
func TestFiles_AmpereModel(t *testing.T) {
	files := map[string]string{"c.yaml": claim("deviceClassName: mig-3g.40gb.cleave.dev"), "default.yaml": policyHead + "rules: [{tiers: [mig]}]"}
	if got := check(t, directory(t, files), Options{Node: node(t, "dgx-a100")}); got.Problems != nil {
		t.Errorf("got %q", got.Problems)
	}
	real := node(t, "dgx-a100")
	real.Model = false
	if got := check(t, directory(t, files), Options{Node: real}); len(got.Problems) != 1 || !strings.Contains(got.Problems[0], "has no devices of class") {
		t.Errorf("a machine out of MIG mode: got %q", got.Problems)
	}
}

func TestFiles_UnreadablePath(t *testing.T) {
	dir := directory(t, map[string]string{"training.yaml": policyHead, "notes.txt": ""})
	if err := os.Mkdir(filepath.Join(dir, "empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"traning.yaml": "read traning.yaml: no such file or directory: did you mean training.yaml?",
		"other":        "read other: no such file or directory",
		"empty":        "read empty: no file of the directory ends in .yaml, .yml, .json",
	} {
		_, err := Files(t.Context(), []string{filepath.Join(dir, path)}, Options{Rules: admission.DefaultRules()})
		if err == nil || strings.ReplaceAll(err.Error(), dir+"/", "") != want {
			t.Errorf("%s: got %v, want %s", path, err, want)
		}
	}
}

func FuzzFiles(f *testing.F) {
	for _, seed := range []string{
		policyHead, claim(`deviceClassName: gpu.cleave.dev, selectors: [{cel: {expression: "device.driver == 'x'"}}]`), classHead + "spec: {selectors: [{}]}",
		"apiVersion: v1\nkind: List\nitems: [1, {}, {apiVersion: v1, kind: List, items: []}]", "apiVersion: v1\nkind: ConfigMap\ndata: {a.yaml: 'kind: NodePolicy'}", "- a", "\xff", "{", "apiVersion: 1\nkind: {}",
		claimHead + "spec: {devices: {requests: [{name: a, firstAvailable: [{}]}], config: [{opaque: {driver: gpu.cleave.dev}}], constraints: [{}]}}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		files, err := Files(t.Context(), []string{"-"}, Options{Rules: admission.DefaultRules(), Stdin: strings.NewReader(string(data))})
		if err != nil || len(files) != 1 {
			t.Fatalf("got %v, %v", files, err)
		}
		if f := files[0]; len(f.Problems)+len(f.Checked)+len(f.PassedOver) == 0 {
			t.Error("nothing is said of the file")
		}
		for _, problem := range files[0].Problems {
			if strings.ContainsAny(problem, "\n") || !strings.HasPrefix(problem, "-: ") {
				t.Errorf("%q is not a line with the file", problem)
			}
		}
	})
}
