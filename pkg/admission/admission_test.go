// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// claimYAML is a ResourceClaim with a spec.devices of these lines.
func claimYAML(t testing.TB, devices string) *resourceapi.ResourceClaim {
	t.Helper()
	claim := &resourceapi.ResourceClaim{}
	if err := yaml.UnmarshalStrict([]byte("metadata: {name: c, namespace: n}\nspec:\n  devices: "+devices), claim); err != nil {
		t.Fatal(err)
	}
	return claim
}

const (
	config  = `config: [{opaque: {driver: gpu.cleave.dev, parameters: {apiVersion: gpu.cleave.dev/v1alpha1, kind: ShareConfig, `
	request = `requests: [{name: r, exactly: {deviceClassName: `
)

func TestReview_InvalidParameters(t *testing.T) {
	tests := map[string]struct {
		devices string
		want    []string // nothing: it is let through
	}{
		"no devices":              {`{}`, nil},
		"a whole GPU":             {`{` + request + `gpu.cleave.dev, count: 2}}]}`, nil},
		"parameters":              {`{` + config + `mps: {activeThreadPercentage: 50}}}}]}`, nil},
		"another driver's":        {`{config: [{opaque: {driver: gpu.example.com, parameters: {kind: X}}}]}`, nil},
		"unknown field":           {`{` + config + `mps: {threads: 5}}}}]}`, []string{"spec.devices.config[0].opaque.parameters", `unknown field "mps.threads"`}},
		"out of bounds":           {`{` + config + `mps: {activeThreadPercentage: 500}}}}]}`, []string{"config[0]", "mps.activeThreadPercentage", "1 to 100"}},
		"unknown kind":            {`{config: [{opaque: {driver: gpu.cleave.dev, parameters: {apiVersion: gpu.cleave.dev/v1alpha1, kind: GpuConfig}}}]}`, []string{`unknown kind "GpuConfig"`, "ShareConfig"}},
		"no parameters":           {`{config: [{opaque: {driver: gpu.cleave.dev, parameters: }}]}`, []string{"parameters"}},
		"one MPS share":           {`{` + request + `mps.cleave.dev, count: 1}}]}`, nil},
		"two MPS shares":          {`{` + request + `mps.cleave.dev, count: 2}}]}`, []string{"spec.devices.requests[0].exactly.count", "one MPS server only"}},
		"all MPS shares":          {`{` + request + `mps.cleave.dev, allocationMode: All}}]}`, []string{"requests[0].exactly.allocationMode", "one share a request"}},
		"two MPS shares or a GPU": {`{requests: [{name: r, firstAvailable: [{name: a, deviceClassName: gpu.cleave.dev}, {name: b, deviceClassName: mps.cleave.dev, count: 2}]}]}`, []string{"requests[0].firstAvailable[1].count"}},
		"two time slices":         {`{` + request + `timeslice.cleave.dev, count: 2}}]}`, nil},
		"amounts":                 {`{` + request + `mps.cleave.dev, capacity: {requests: {memory: 4Gi, cores: 20}}}}]}`, nil},
		"negative memory":         {`{` + request + `mps.cleave.dev, capacity: {requests: {memory: -4Gi}}}}]}`, []string{"requests[0].exactly.capacity.requests[memory]", "-4Gi", "not be below zero"}},
		"negative shares, by our full name": {`{` + request + `timeslice.cleave.dev, capacity: {requests: {gpu.cleave.dev/shares: -1}}}}]}`,
			[]string{"capacity.requests[gpu.cleave.dev/shares]"}},
		"another driver's amount": {`{` + request + `nic.example.com, capacity: {requests: {example.com/memory: -1}}}}]}`, nil},
		"two things":              {`{` + request + `mps.cleave.dev, count: 3, capacity: {requests: {cores: -1}}}}], ` + config + `}}}]}`, []string{"count", "requests[cores]", "set timeSlice or mps"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			claim := claimYAML(t, tt.devices)
			template := &resourceapi.ResourceClaimTemplate{Spec: resourceapi.ResourceClaimTemplateSpec{Spec: claim.Spec}}
			for path, object := range map[string]runtime.Object{"spec.devices": claim, "spec.spec.devices": template} {
				err := DefaultRules().Check(object).ToAggregate()
				if len(tt.want) == 0 && err != nil {
					t.Errorf("got %v, want it let through", err)
				}
				for _, want := range tt.want {
					if want = strings.Replace(want, "spec.devices", path, 1); err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("got %v, want %q said", err, want)
					}
				}
			}
		})
	}
}

func TestReview_DriverName(t *testing.T) {
	nvidias := func(kind, driver string) *resourceapi.ResourceClaim {
		return claimYAML(t, `{config: [{opaque: {driver: `+driver+`, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: `+kind+`}}}]}`)
	}
	compatible := DefaultRules()
	compatible.Driver = "gpu.nvidia.com"
	tests := map[string]struct {
		rules Rules
		claim *resourceapi.ResourceClaim
		want  string // empty: it is let through
	}{
		"NVIDIA's, in compatible mode":       {compatible, nvidias("GpuConfig", "gpu.nvidia.com"), ""},
		"no such, in compatible mode":        {compatible, nvidias("VfioDeviceConfig", "gpu.nvidia.com"), "virtual machines"},
		"NVIDIA's, given to us":              {DefaultRules(), nvidias("GpuConfig", "gpu.cleave.dev"), "NVIDIA-compatible mode"},
		"NVIDIA's, for NVIDIA's driver":      {DefaultRules(), nvidias("Anything", "gpu.nvidia.com"), ""},
		"for us by name, in compatible mode": {compatible, nvidias("Anything", "gpu.cleave.dev"), ""},
	}
	for name, tt := range tests {
		err := tt.rules.Check(tt.claim).ToAggregate()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q said", name, err, tt.want)
		}
	}
}

func TestReview_DeviceClass(t *testing.T) {
	class := &resourceapi.DeviceClass{}
	text := "metadata: {name: c}\nspec: {config: [{opaque: {driver: gpu.cleave.dev, parameters: {apiVersion: gpu.cleave.dev/v1alpha1, kind: ShareConfig, timeSlice: {interval: Longer}}}}]}"
	if err := yaml.UnmarshalStrict([]byte(text), class); err != nil {
		t.Fatal(err)
	}
	err := DefaultRules().Check(class).ToAggregate()
	if err == nil || !strings.Contains(err.Error(), "spec.config[0].opaque.parameters") || !strings.Contains(err.Error(), "Longer") {
		t.Errorf("got %v, want the field and its value", err)
	}
}

// What comes with the project is right.
func TestReview_Examples(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "deployments", "*", "*.yaml"))
	if err != nil || len(files) < 10 {
		t.Fatalf("got %v, %v, want the manifests", files, err)
	}
	checked := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range strings.Split(string(data), "\n---") {
			kinds := map[string]runtime.Object{"ResourceClaim": &resourceapi.ResourceClaim{}, "ResourceClaimTemplate": &resourceapi.ResourceClaimTemplate{}, "DeviceClass": &resourceapi.DeviceClass{}}
			var kind struct{ Kind string }
			if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			object := kinds[kind.Kind]
			if object == nil {
				continue
			}
			checked++
			if err := yaml.Unmarshal([]byte(document), object); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if err := DefaultRules().Check(object).ToAggregate(); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
	if checked < 15 {
		t.Errorf("%d objects were checked only", checked)
	}
	if !slices.Contains(DefaultRules().SingleShare, "mps.cleave.dev") {
		t.Error("the MPS class gives one share a request")
	}
}
