// SPDX-License-Identifier: Apache-2.0

package parameters

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// config are parameters of a kind with this sharing.
func config(kind, sharing string) string {
	if sharing != "" {
		sharing = `,"sharing":` + sharing
	}
	return `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"` + kind + `"` + sharing + `}`
}

func TestDecode_BothAPIs(t *testing.T) {
	half, limit := int32(50), resource.MustParse("10Gi")
	ours := `{"apiVersion":"gpu.cleave.dev/v1alpha1","kind":"ShareConfig","mps":{"activeThreadPercentage":50,"pinnedDeviceMemoryLimit":"10Gi"}}`
	same := v1alpha1.MPSConfig{ActiveThreadPercentage: &half, PinnedDeviceMemoryLimit: &limit}
	defaults := &v1alpha1.TimeSliceConfig{Interval: v1alpha1.IntervalDefault}
	tests := map[string]struct {
		raw  string
		want Parameters
	}{
		"ShareConfig": {ours, Parameters{Kind: "ShareConfig", MPS: &MPS{MPSConfig: same}}},
		"GpuConfig, MPS": {
			config("GpuConfig", `{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":50,"defaultPinnedDeviceMemoryLimit":"10Gi","defaultPerDevicePinnedMemoryLimit":{"0":"10Gi"}}}`),
			Parameters{Kind: "GpuConfig", ExclusiveOf: "gpu", MPS: &MPS{MPSConfig: same, PerDevice: map[string]resource.Quantity{"0": limit}}},
		},
		"GpuConfig, plain MPS": {config("GpuConfig", `{"strategy":"MPS"}`), Parameters{Kind: "GpuConfig", ExclusiveOf: "gpu", MPS: &MPS{}}},
		"GpuConfig, nothing":   {config("GpuConfig", ""), Parameters{Kind: "GpuConfig", ExclusiveOf: "gpu", TimeSlice: defaults}},
		"MigDeviceConfig":      {config("MigDeviceConfig", ""), Parameters{Kind: "MigDeviceConfig", ExclusiveOf: "mig", TimeSlice: defaults}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Decode(nvidia.DriverName, []byte(tt.raw))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tt.want, got); diff != "" {
				t.Errorf("parameters (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecode_ShareConfigInEveryMode(t *testing.T) {
	const raw = `{"apiVersion":"gpu.cleave.dev/v1alpha1","kind":"ShareConfig","timeSlice":{"interval":"Long"}}`
	for _, driver := range []string{nvidia.DriverName, v1alpha1.Group, "gpu.example.com"} {
		got, err := Decode(driver, []byte(raw))
		if err != nil || got.Exclusive() || got.Kind != v1alpha1.ShareConfigKind || got.MPS != nil || got.TimeSlice.Interval != "Long" {
			t.Errorf("%s: got %+v, %v", driver, got, err)
		}
	}
}

func TestDecode_Errors(t *testing.T) {
	for raw, want := range map[string]string{
		`{"apiVersion":"gpu.cleave.dev/v1alpha1","kind":"GpuConfig"}`: `unknown kind "GpuConfig" in gpu.cleave.dev/v1alpha1: want ShareConfig`,
		`{"apiVersion":"gpu.example.com/v1","kind":"GpuConfig"}`:      `unknown apiVersion "gpu.example.com/v1" of kind "GpuConfig": want resource.nvidia.com/v1beta1`,
		"strategy: MPS": "JSON object with apiVersion and kind",
	} {
		got, err := Decode(nvidia.DriverName, []byte(raw))
		if err == nil || got != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %+v, %v, want an error that says %q", raw, got, err, want)
		}
	}
}

func TestMPS_MemoryLimit(t *testing.T) {
	const gi = int64(1) << 30
	amounts := func(pairs ...string) map[string]resource.Quantity {
		all := map[string]resource.Quantity{}
		for i := 0; i+1 < len(pairs); i += 2 {
			all[pairs[i]] = resource.MustParse(pairs[i+1])
		}
		return all
	}
	of := func(all string, pairs ...string) *MPS {
		m := &MPS{PerDevice: amounts(pairs...)}
		if all != "" {
			m.PinnedDeviceMemoryLimit = new(resource.MustParse(all))
		}
		return m
	}
	tests := map[string]struct {
		mps  *MPS
		want int64
		err  string
	}{
		"nothing":            {&MPS{}, 0, ""},
		"no limit":           {of(""), 0, ""},
		"one for all":        {of("10Gi"), 10 * gi, ""},
		"by number":          {of("", "0", "5Gi"), 5 * gi, ""},
		"number before all":  {of("10Gi", "0", "5Gi"), 5 * gi, ""},
		"by UUID":            {of("10Gi", "GPU-a", "20Gi"), 20 * gi, ""},
		"another number":     {of("10Gi", "1", "5Gi"), 0, `device "1"`},
		"another UUID":       {of("", "GPU-b", "5Gi"), 0, `device "GPU-b"`},
		"the same GPU twice": {of("", "0", "5Gi", "GPU-a", "6Gi"), 0, "twice"},
	}
	for name, tt := range tests {
		got, err := tt.mps.MemoryLimit("GPU-a")
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: got %d, %v, want %d and an error that says %q", name, got, err, tt.want, tt.err)
		}
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

func FuzzDecode(f *testing.F) {
	for _, sharing := range []string{
		"", `{"strategy":"TimeSlicing","timeSlicingConfig":{}}`, `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`,
		`{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":50,"defaultPinnedDeviceMemoryLimit":"10Gi","defaultPerDevicePinnedMemoryLimit":{"0":"1e999999999"},"multiUser":true}}`,
		`{"strategy":"MPS","timeSlicingConfig":{}}`, `{"strategy":"\u0000"}`, `{"strategy":"MPS","mpsConfig":{"defaultPerDevicePinnedMemoryLimit":{"a\nb":null,"GPU-1":1e308}}}`,
	} {
		f.Add(nvidia.DriverName, []byte(config(nvidia.GPUConfigKind, sharing)))
		f.Add(nvidia.DriverName, []byte(config(nvidia.MIGDeviceConfigKind, sharing)))
		f.Add(v1alpha1.Group, []byte(config("VfioDeviceConfig", sharing)))
	}
	f.Add(nvidia.DriverName, []byte(nil))
	f.Add(nvidia.DriverName, []byte(strings.Repeat("[", 20000)))
	f.Add(nvidia.DriverName, []byte("{\"apiVersion\":\"\xff\",\"kind\":\"\\u0000\"}"))
	f.Fuzz(func(t *testing.T, driver string, raw []byte) {
		p, err := Decode(driver, raw)
		if err != nil {
			checkText(t, err)
			return
		}
		if p.Kind != v1alpha1.ShareConfigKind && (!p.Exclusive() || p.Kind != ExclusiveKind(p.ExclusiveOf)) || p.Exclusive() && driver != nvidia.DriverName {
			t.Fatalf("driver %s honours %q as %+v", driver, raw, p)
		}
		if p.TimeSlice == nil && p.MPS == nil || p.Exclusive() && p.TimeSlice != nil && p.MPS != nil {
			t.Errorf("%q contradicts itself and is honoured as %+v", raw, p)
		}
		if p.ExclusiveOf == "mig" && p.TimeSlice != nil && p.TimeSlice.Interval != v1alpha1.IntervalDefault { // which is the GPU's
			t.Errorf("%q is honoured as %+v", raw, p)
		}
		if p.MPS == nil {
			return
		}
		limit, err := p.MPS.MemoryLimit("GPU-1")
		if err != nil {
			checkText(t, err)
		} else if limit != 0 && limit < 1<<20 {
			t.Errorf("%q: a memory limit of %d", raw, limit)
		}
	})
}
