// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What the API server takes, and what it refuses: a test in a cluster (e2e/chart) asks it about the same objects.
func TestFiles_AsAPIServer(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "objects.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	documents := strings.Split(string(data), "---\n")[1:]
	if len(documents) < 70 {
		t.Fatalf("got %d objects only", len(documents))
	}
	for _, document := range documents {
		got := check(t, directory(t, map[string]string{"f.yaml": document}), Options{})
		if ok := strings.Contains(document, "name: ok-"); ok != (len(got.Problems) == 0) || len(got.Checked) != 1 {
			t.Errorf("checked %q, problems %q of\n%s", got.Checked, got.Problems, document)
		}
	}
}

// otherClasses are those of other drivers.
const otherClasses = `---
{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: nic.example.com}, spec: {selectors: [{cel: {expression: device.driver == 'nic.example.com'}}]}}
---
{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: any.example.com}, spec: {selectors: [{cel: {expression: "true"}}]}}
`

func TestFiles_DriverNames(t *testing.T) {
	// class of a second request, and requests that the parameters are for.
	of := func(driver, apiVersion string, more ...string) string {
		second, requests := "", ""
		for _, m := range more {
			if class, ok := strings.CutPrefix(m, "class: "); ok {
				second = ", {name: nic, exactly: {deviceClassName: " + class + "}}"
			} else {
				requests = m + ", "
			}
		}
		return claimHead + "spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: mps.cleave.dev}}" + second + "], config: [{" + requests +
			"opaque: {driver: " + driver + ", parameters: {apiVersion: " + apiVersion + ", kind: ShareConfig, mps: {}}}}]}}\n" + otherClasses
	}
	const warning = "f.yaml: ResourceClaim team/c: spec.devices.config[0].opaque.driver: driver %q is not Cleave's, which ignores these parameters: did you mean \"gpu.cleave.dev\"?"
	tests := map[string]struct {
		file string
		want []string
	}{
		"right":             {of("gpu.cleave.dev", "gpu.cleave.dev/v1alpha1"), nil},
		"letters exchanged": {of("gpu.cleave.dve", "x/v1"), []string{strings.Replace(warning, "%q", `"gpu.cleave.dve"`, 1)}},
		"a letter missing":  {of("gpu.cleav.dev", "x/v1"), []string{strings.Replace(warning, "%q", `"gpu.cleav.dev"`, 1)}},
		"our parameters":    {of("gpu.example.com", "gpu.cleave.dev/v1alpha1"), []string{strings.Replace(warning, "%q", `"gpu.example.com"`, 1)}},
		"another's": {of("gpu.nvidia.com", "resource.nvidia.com/v1beta1"), []string{
			`f.yaml: ResourceClaim team/c: spec.devices.config[0].opaque.driver: driver "gpu.nvidia.com" is not that of Cleave's classes, which all these requests name: these parameters are ignored: did you mean "gpu.cleave.dev"?`,
		}},
		"a third of two": {of("gpu.example.com", "x/v1", "class: nic.example.com"), []string{
			`f.yaml: ResourceClaim team/c: spec.devices.config[0].opaque.driver: driver "gpu.example.com" is not that of the classes of these requests, which are of gpu.cleave.dev and nic.example.com: these parameters are ignored`,
		}},
		"the second of two": {of("nic.example.com", "x/v1", "class: nic.example.com"), nil},
		"for the other request": {of("nic.example.com", "x/v1", "class: nic.example.com", "requests: [gpu]"), []string{
			`f.yaml: ResourceClaim team/c: spec.devices.config[0].opaque.driver: driver "nic.example.com" is not that of Cleave's classes, which all these requests name: these parameters are ignored: did you mean "gpu.cleave.dev"?`,
		}},
		"a class that is nowhere":      {of("gpu.example.com", "x/v1", "class: fpga.example.com"), nil},
		"a class that names no driver": {of("gpu.example.com", "x/v1", "class: any.example.com"), nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := check(t, directory(t, map[string]string{"f.yaml": tt.file}), Options{})
			if diff := cmp.Diff(checked{Checked: []string{"ResourceClaim team/c", "DeviceClass nic.example.com", "DeviceClass any.example.com"}, Notes: tt.want}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
