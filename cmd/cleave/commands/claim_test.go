// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/tools/shortform"
)

const publishing = "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: default}\n" +
	"rules: [{publish: {attributes: [dra.net/numaNode]}}]\n"

// What is printed passes cleave validate, on a node where its classes are Cleave's; the recipe is one of them.
func TestClaim(t *testing.T) {
	recipe := strings.Split(recipeFile(t, "aligned"), "---\n")[0]
	_, recipe, _ = strings.Cut(recipe, "apiVersion:")
	recipe = "apiVersion:" + recipe
	tests := map[string]struct {
		args         []string
		stdout, note string
	}{
		"aligned": {[]string{"4 gpus, 48 cpus, 4 nics, one numa node", "--name", "aligned"}, recipe, "request 48 CPUs in the pod's resources"},
		"partitions": {[]string{"2", "1g.10gb+me,", "memory", ">=", "8Gi"}, `apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  name: 2-1g.10gb.me
spec:
  spec:
    devices:
      requests:
      - exactly:
          allocationMode: ExactCount
          count: 2
          deviceClassName: mig-1g.10gb.me.cleave.dev
          selectors:
          - cel:
              expression: device.capacity["gpu.cleave.dev"].memory.compareTo(quantity("8Gi"))
                >= 0
        name: gpus
`, ""},
		"previous attribute": {[]string{"1 gpu, one numa node", "--numa-attribute=dra.net/numaNode"}, "matchAttribute: dra.net/numaNode\n", ""},
		"classes":            {[]string{"1 gpu, 1 cpu, 1 nic", "--cpu-class=a.example.com", "--nic-class=b.example.com"}, "deviceClassName: b.example.com\n", `without "one numa node", GPUs`},
		"NVLink":             {[]string{"4 gpus, one nvlink domain"}, "matchAttribute: gpu.cleave.dev/nvlinkGroup\n", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := cleave(t, append([]string{"claim"}, tt.args...)...)
			if got.code != cli.ExitOK || !strings.Contains(got.stderr, tt.note) || tt.note == "" && got.stderr != "" {
				t.Errorf("got %d, %s", got.code, got.stderr)
			}
			if strings.HasPrefix(tt.stdout, "apiVersion:") {
				if diff := cmp.Diff(tt.stdout, got.stdout); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			} else if !strings.Contains(got.stdout, tt.stdout) {
				t.Errorf("%q is not in\n%s", tt.stdout, got.stdout)
			}
			checkClaim(t, tt.args, got.stdout)
		})
	}
}

// Attributes and capacities are those of the driver's name; the classes keep theirs.
func TestClaim_DriverName(t *testing.T) {
	got := cleave(t, "claim", "2 gpus, memory >= 40Gi, one nvlink domain", "--driver-name=gpu.nvidia.com")
	for _, want := range []string{"matchAttribute: gpu.nvidia.com/nvlinkGroup\n", `device.capacity["gpu.nvidia.com"].memory`, "deviceClassName: gpu.cleave.dev\n"} {
		if got.code != cli.ExitOK || !strings.Contains(got.stdout, want) {
			t.Errorf("got %d, %s%s, want %q", got.code, got.stderr, got.stdout, want)
		}
	}
}

// checkClaim checks that what was printed passes validate and is the same as JSON.
func checkClaim(t *testing.T, args []string, printed string) {
	t.Helper()
	file := writeFile(t, "claim.yaml", printed)
	rules := writeFile(t, "policy.yaml", publishing) // with which the model has all attributes
	if checked := cleave(t, "validate", "-f", file, "-f", rules, "--node-model", "hgx-h100"); checked.code != cli.ExitOK {
		t.Errorf("validate: %d, %s%s", checked.code, checked.stdout, checked.stderr)
	}
	asJSON := cleave(t, append([]string{"claim", "-o", "json"}, args...)...)
	fromJSON, fromYAML := &resourceapi.ResourceClaimTemplate{}, &resourceapi.ResourceClaimTemplate{}
	if err := json.Unmarshal([]byte(asJSON.stdout), fromJSON); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict([]byte(printed), fromYAML); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fromYAML, fromJSON); diff != "" {
		t.Errorf("as JSON (-YAML +JSON):\n%s", diff)
	}
}

// Names of profiles come from those of classes.
func TestClaim_Profiles(t *testing.T) {
	profiles, err := profilesOfClasses()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"1g.10gb", "1g.10gb+me", "1g.24gb+gfx", "2g.48gb+me.all", "1g.24gb-me"} {
		if !slices.Contains(profiles, name) {
			t.Errorf("%s is not among %q", name, profiles)
		}
	}
	for _, name := range profiles {
		if _, err := shortform.Parse("1 "+name, profiles); err != nil {
			t.Errorf("1 %s: %v", name, err)
		}
	}
}
