// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

func ptr[T any](v T) *T { return &v }

// config are parameters of a kind with this sharing.
func config(kind, sharing string) string {
	if sharing != "" {
		sharing = `,"sharing":` + sharing
	}
	return `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"` + kind + `"` + sharing + `}`
}

func TestDecodeParameters(t *testing.T) {
	slicing := func(t *TimeSlicing) *Sharing { return &Sharing{Strategy: StrategyTimeSlicing, TimeSlicing: t} }
	mps := func(m *MPS) *Sharing { return &Sharing{Strategy: StrategyMPS, MPS: m} }
	tests := map[string]struct {
		kind, sharing string
		want          *Sharing
		interval      v1alpha1.Interval
		mps           bool
	}{
		"nothing":                    {GPUConfigKind, "", nil, "Default", false},
		"null":                       {GPUConfigKind, "null", nil, "Default", false},
		"time slicing":               {GPUConfigKind, `{"strategy":"TimeSlicing"}`, slicing(nil), "Default", false},
		"time slicing without wish":  {GPUConfigKind, `{"strategy":"TimeSlicing","timeSlicingConfig":{}}`, slicing(&TimeSlicing{}), "Default", false},
		"null interval":              {GPUConfigKind, `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":null}}`, slicing(&TimeSlicing{}), "Default", false},
		"default interval":           {GPUConfigKind, `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Default"}}`, slicing(&TimeSlicing{Interval: "Default"}), "Default", false},
		"long interval":              {GPUConfigKind, `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`, slicing(&TimeSlicing{Interval: "Long"}), "Long", false},
		"MPS":                        {GPUConfigKind, `{"strategy":"MPS"}`, mps(nil), "Default", true},
		"MPS without wish":           {GPUConfigKind, `{"strategy":"MPS","mpsConfig":{}}`, mps(&MPS{}), "Default", true},
		"partition":                  {MIGDeviceConfigKind, "", nil, "Default", false},
		"partition, time slicing":    {MIGDeviceConfigKind, `{"strategy":"TimeSlicing"}`, slicing(nil), "Default", false},
		"partition, default slicing": {MIGDeviceConfigKind, `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Default"}}`, slicing(&TimeSlicing{Interval: "Default"}), "Default", false},
		"partition, MPS":             {MIGDeviceConfigKind, `{"strategy":"MPS"}`, mps(nil), "Default", true},
		"all of MPS": {
			GPUConfigKind, `{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":50,"defaultPinnedDeviceMemoryLimit":"10Gi","defaultPerDevicePinnedMemoryLimit":{"0":"5Gi","GPU-1":1048576},"multiUser":true}}`,
			mps(&MPS{
				ActiveThreadPercentage: ptr(int32(50)), PinnedDeviceMemoryLimit: ptr(resource.MustParse("10Gi")), MultiUser: ptr(true),
				PerDevicePinnedMemoryLimit: map[string]resource.Quantity{"0": resource.MustParse("5Gi"), "GPU-1": resource.MustParse("1048576")},
			}), "Default", true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := DecodeParameters(DriverName, []byte(config(tt.kind, tt.sharing)))
			if err != nil {
				t.Fatal(err)
			}
			want := &Config{TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: tt.kind}, Sharing: tt.want}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("parameters (-want +got):\n%s", diff)
			}
			if got.Interval() != tt.interval || got.UsesMPS() != tt.mps {
				t.Errorf("interval %s, MPS %t, want %s, %t", got.Interval(), got.UsesMPS(), tt.interval, tt.mps)
			}
		})
	}
}

func TestDecodeParameters_Errors(t *testing.T) {
	mps := func(members string) string {
		return config(GPUConfigKind, `{"strategy":"MPS","mpsConfig":{`+members+`}}`)
	}
	tests := map[string]struct {
		raw  string
		want []string
	}{
		"no JSON":             {"strategy: MPS", []string{"JSON object with apiVersion and kind"}},
		"empty object":        {"{}", []string{"set apiVersion and kind", APIVersion}},
		"no kind":             {`{"apiVersion":"resource.nvidia.com/v1beta1"}`, []string{"set apiVersion and kind"}},
		"no apiVersion":       {`{"kind":"GpuConfig"}`, []string{"set apiVersion and kind", APIVersion}},
		"later version":       {`{"apiVersion":"resource.nvidia.com/v1","kind":"GpuConfig"}`, []string{`"resource.nvidia.com/v1"`, "want " + APIVersion}},
		"earlier group":       {`{"apiVersion":"gpu.nvidia.com/v1alpha1","kind":"GpuConfig"}`, []string{`"gpu.nvidia.com/v1alpha1"`, "want " + APIVersion}},
		"group without both":  {`{"apiVersion":"resource.nvidia.com","kind":"GpuConfig"}`, []string{`"resource.nvidia.com"`, "want " + APIVersion}},
		"group of nobody":     {`{"apiVersion":"gpu.example.com/v1","kind":"GpuConfig"}`, []string{`"gpu.example.com/v1"`, "want " + APIVersion}},
		"apiVersion twice":    {`{"apiVersion":"x","apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"}`, []string{`duplicate field "apiVersion"`}},
		"kind in lower case":  {config("gpuconfig", ""), []string{`unknown kind "gpuconfig"`, GPUConfigKind, MIGDeviceConfigKind}},
		"kind with a newline": {config(`a\nb`, ""), []string{`"a\nb"`}},
		"virtual machine":     {config("VfioDeviceConfig", ""), []string{"VfioDeviceConfig cannot be honoured", "virtual machines"}},
		"vGPU":                {config("VgpuConfig", ""), []string{"VgpuConfig cannot be honoured", "MIG partition"}},
		"channel":             {config("ComputeDomainChannelConfig", ""), []string{"compute-domain.nvidia.com"}},
		"daemon":              {config("ComputeDomainDaemonConfig", ""), []string{"compute-domain.nvidia.com"}},

		"no strategy":            {config(GPUConfigKind, "{}"), []string{"sharing.strategy", `"TimeSlicing", "MPS"`}},
		"unknown strategy":       {config(GPUConfigKind, `{"strategy":"mps"}`), []string{"sharing.strategy", `"mps"`, `"TimeSlicing", "MPS"`}},
		"fabric":                 {config(GPUConfigKind, `{"strategy":"Fabric"}`), []string{"sharing.strategy", `"Fabric"`}},
		"MPS with time slices":   {config(GPUConfigKind, `{"strategy":"MPS","timeSlicingConfig":{"interval":"Long"}}`), []string{"sharing.timeSlicingConfig", "strategy TimeSlicing", "remove one"}},
		"time slices with MPS":   {config(GPUConfigKind, `{"strategy":"TimeSlicing","mpsConfig":{}}`), []string{"sharing.mpsConfig", "strategy MPS", "remove one"}},
		"unknown interval":       {config(GPUConfigKind, `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"short"}}`), []string{"sharing.timeSlicingConfig.interval", `"short"`, `"Short"`}},
		"unknown field":          {config(GPUConfigKind, `{"strategy":"MPS","shares":4}`), []string{`unknown field "sharing.shares"`}},
		"unknown deep field":     {mps(`"activeThreadPercentage":4`), []string{`unknown field "sharing.mpsConfig.activeThreadPercentage"`}},
		"field twice":            {mps(`"multiUser":true,"multiUser":false`), []string{`duplicate field "sharing.mpsConfig.multiUser"`}},
		"negative threads":       {mps(`"defaultActiveThreadPercentage":-1`), []string{"sharing.mpsConfig.defaultActiveThreadPercentage", "0 to 100"}},
		"too many threads":       {mps(`"defaultActiveThreadPercentage":101`), []string{"sharing.mpsConfig.defaultActiveThreadPercentage", "101"}},
		"threads beyond numbers": {mps(`"defaultActiveThreadPercentage":4294967297`), []string{"defaultActiveThreadPercentage"}},
		"too little memory":      {mps(`"defaultPinnedDeviceMemoryLimit":"1Ki"`), []string{"sharing.mpsConfig.defaultPinnedDeviceMemoryLimit", "1Mi or more"}},
		"memory without end":     {mps(`"defaultPinnedDeviceMemoryLimit":"1e999999999"`), []string{"sharing.mpsConfig.defaultPinnedDeviceMemoryLimit", "512Mi"}},
		"memory of one device, without end": {
			mps(`"defaultPerDevicePinnedMemoryLimit":{"0":"1e999999999"}`), []string{"sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[0]", "512Mi"},
		},
		"too little for a device": {mps(`"defaultPerDevicePinnedMemoryLimit":{"0":"1"}`), []string{"defaultPerDevicePinnedMemoryLimit[0]", "1Mi or more"}},
		"null for a device":       {mps(`"defaultPerDevicePinnedMemoryLimit":{"0":null}`), []string{"defaultPerDevicePinnedMemoryLimit[0]", "1Mi or more"}},
		"device twice":            {mps(`"defaultPerDevicePinnedMemoryLimit":{"0":"1Gi","0":"2Gi"}`), []string{"duplicate field"}},
		"device of no kind":       {mps(`"defaultPerDevicePinnedMemoryLimit":{"first":"1Gi"}`), []string{"defaultPerDevicePinnedMemoryLimit", `"first"`, "number of a device"}},
		"device below all":        {mps(`"defaultPerDevicePinnedMemoryLimit":{"-1":"1Gi"}`), []string{`"-1"`}},
		"device with zeros":       {mps(`"defaultPerDevicePinnedMemoryLimit":{"00":"1Gi"}`), []string{`"00"`}},
		"partition's UUID":        {mps(`"defaultPerDevicePinnedMemoryLimit":{"MIG-1":"1Gi"}`), []string{`"MIG-1"`, "UUID of a GPU"}},
		"list of devices":         {mps(`"defaultPerDevicePinnedMemoryLimit":["1Gi"]`), []string{"defaultPerDevicePinnedMemoryLimit"}},

		"partition, memory by UUID": {
			config(MIGDeviceConfigKind, `{"strategy":"MPS","mpsConfig":{"defaultPerDevicePinnedMemoryLimit":{"0":"1Gi","GPU-1":"1Gi"}}}`),
			[]string{"sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit", "GPU-1", "must be 0"},
		},
		"partition, own interval":   {config(MIGDeviceConfigKind, `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Short"}}`), []string{"sharing.timeSlicingConfig.interval", "one interval for all of its partitions"}},
		"partition, unknown, first": {config(MIGDeviceConfigKind, `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"x"}}`), []string{`"x"`}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := DecodeParameters(DriverName, []byte(tt.raw))
			if err == nil {
				t.Fatalf("got %+v, want an error", got)
			}
			for _, w := range append(tt.want, "parameters: ") {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not say %q", err, w)
				}
			}
			checkText(t, err)
		})
	}
}

func TestDecodeParameters_OtherDriverName(t *testing.T) {
	for _, raw := range []string{config(GPUConfigKind, ""), config("VfioDeviceConfig", ""), config("x", "7"), `{"apiVersion":"gpu.nvidia.com/v1alpha1","kind":"GpuConfig"}`} {
		_, err := DecodeParameters(v1alpha1.Group, []byte(raw))
		if err == nil {
			t.Fatalf("%s: got no error", raw)
		}
		for _, w := range []string{"NVIDIA-compatible mode", "--driver-name=gpu.nvidia.com", "ShareConfig"} {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: error %q does not say %q", raw, err, w)
			}
		}
		checkText(t, err)
	}
}

// checkText checks that an error is one line of valid UTF-8 that can be printed: the kubelet makes an Event of it.
func checkText(t *testing.T, err error) {
	t.Helper()
	text := err.Error()
	if text == "" || !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("error %q is not one line of text", text)
	}
}
