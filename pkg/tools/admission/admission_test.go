// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
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
		"negative memory":         {`{` + request + `mps.cleave.dev, capacity: {requests: {memory: -4Gi}}}}]}`, []string{"requests[0].exactly.capacity.requests[memory]", "-4Gi", "more than zero"}},
		"negative shares, by our full name": {`{` + request + `timeslice.cleave.dev, capacity: {requests: {gpu.cleave.dev/shares: -1}}}}]}`,
			[]string{"capacity.requests[gpu.cleave.dev/shares]"}},
		"another driver's amount": {`{` + request + `nic.example.com, capacity: {requests: {example.com/memory: -1}}}}]}`, nil},
		"no memory":               {`{` + request + `mps.cleave.dev, capacity: {requests: {memory: 0}}}}]}`, []string{"requests[memory]", "more than zero"}},
		"more memory than any":    {`{` + request + `gpu.cleave.dev, capacity: {requests: {memory: 3Ti}}}}]}`, []string{"requests[memory]", `"3Ti": no GPU has more than 2Ti`}},
		"more cores than any":     {`{` + request + `mps.cleave.dev, capacity: {requests: {cores: 101}}}}]}`, []string{`"101": no GPU has more than 100`}},
		"more shares than any":    {`{` + request + `timeslice.cleave.dev, capacity: {requests: {shares: 1001}}}}]}`, []string{`"1001": no GPU has more than 1000`}},
		"cores of a time slice":   {`{` + request + `timeslice.cleave.dev, capacity: {requests: {cores: 5}}}}]}`, []string{"timeslice.cleave.dev have no capacity cores", "mps.cleave.dev"}},
		"shares of a partition":   {`{` + request + `mig-1g.10gb.cleave.dev, capacity: {requests: {shares: 1}}}}]}`, []string{"have no capacity shares"}},
		"cores of another class":  {`{` + request + `mine.example.com, capacity: {requests: {cores: 500}}}}]}`, nil},
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

// Parameters that the request's class cannot have are refused, and only those.
func TestReview_Fit(t *testing.T) {
	const (
		timeSlice = `timeSlice: {interval: Long}`
		exactly   = `requests: [{name: r, exactly: {deviceClassName: %s}}]`
		choice    = `requests: [{name: r, firstAvailable: [{name: part, deviceClassName: mig.cleave.dev}, {name: share, deviceClassName: mps.cleave.dev}]}]`
		mps       = `mps.cleave.dev, capacity: {requests: {cores: 25, memory: 5Gi}}`
	)
	exact := func(class string) string { return fmt.Sprintf(exactly, class) }
	tests := map[string]struct {
		requests string
		configs  []string // "for: parameters"
		want     string   // empty: it is let through
	}{
		"interval of a time slice":         {exact("timeslice.cleave.dev"), []string{timeSlice}, ""},
		"interval of an MPS share":         {exact("mps.cleave.dev"), []string{timeSlice}, `config[0].opaque.parameters.timeSlice: Invalid value: request "r" is of class mps.cleave.dev, and timeSlice is for class timeslice.cleave.dev`},
		"interval of a GPU":                {exact("gpu.cleave.dev"), []string{timeSlice}, "is of class gpu.cleave.dev"},
		"MPS of a partition":               {exact("mig-1g.10gb.cleave.dev"), []string{"mps: {}"}, "is of class mig-1g.10gb.cleave.dev"},
		"both":                             {exact("mps.cleave.dev"), []string{"mps: {}, " + timeSlice}, "timeSlice is for class"},
		"a class of one's own":             {exact("mine.example.com"), []string{timeSlice}, ""},
		"a class of ours that is none":     {exact("mine.cleave.dev"), []string{timeSlice}, ""},
		"corrected by a later one":         {exact("mps.cleave.dev"), []string{timeSlice, "mps: {}"}, ""},
		"spoiled by a later one":           {exact("mps.cleave.dev"), []string{"mps: {}", timeSlice}, "config[1]"},
		"fits an alternative":              {choice, []string{"mps: {}"}, ""},
		"fits no alternative":              {choice, []string{timeSlice}, `request "r/part"`},
		"fits not the alternative's":       {choice, []string{"r/part: mps: {}"}, `request "r/part" is of class mig.cleave.dev`},
		"fits the alternative's":           {choice, []string{"r/share: mps: {}"}, ""},
		"for another request":              {exact("mps.cleave.dev"), []string{"other: " + timeSlice}, ""},
		"fewer cores":                      {exact(mps), []string{"mps: {activeThreadPercentage: 20, pinnedDeviceMemoryLimit: 5Gi}"}, ""},
		"more cores":                       {exact(mps), []string{"mps: {activeThreadPercentage: 26}"}, `activeThreadPercentage: Invalid value: 26: request "r" asks for 25 cores`},
		"more memory":                      {exact(mps), []string{"mps: {pinnedDeviceMemoryLimit: 6Gi}"}, `pinnedDeviceMemoryLimit: Invalid value: "6Gi": request "r" asks for 5Gi of memory`},
		"cores that nothing is said about": {exact("mps.cleave.dev"), []string{"mps: {activeThreadPercentage: 100}"}, ""},
		"more memory than any GPU has":     {exact("mps.cleave.dev"), []string{"mps: {pinnedDeviceMemoryLimit: 3Ti}"}, `"3Ti": no GPU has more than 2Ti`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var configs []string
			for _, c := range tt.configs {
				requests := ""
				for _, of := range []string{"r/part", "r/share", "other"} {
					if rest, ok := strings.CutPrefix(c, of+": "); ok {
						requests, c = "requests: ["+of+"], ", rest
					}
				}
				configs = append(configs, "{"+requests+"opaque: {driver: gpu.cleave.dev, parameters: {apiVersion: gpu.cleave.dev/v1alpha1, kind: ShareConfig, "+c+"}}}")
			}
			claim := claimYAML(t, "{"+tt.requests+", config: ["+strings.Join(configs, ", ")+"]}")
			err := DefaultRules().Check(claim).ToAggregate()
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q said", err, tt.want)
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
