package v1alpha1

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestCheckRefusesAndNamesWhatIsWrong(t *testing.T) {
	tests := map[string]struct {
		raw  string
		want []string
	}{
		"nothing":             {"", []string{"not a JSON object"}},
		"no JSON":             {"shares: 4", []string{"not a JSON object"}},
		"null":                {"null", []string{"must set apiVersion and kind", APIVersion}},
		"number":              {"4", []string{"not a JSON object"}},
		"array":               {"[{}]", []string{"not a JSON object"}},
		"string":              {`"GpuConfig"`, []string{"not a JSON object"}},
		"truncated":           {`{"apiVersion":"gpu.cleave.dev/v1al`, []string{"not a JSON object"}},
		"empty object":        {"{}", []string{"must set apiVersion and kind"}},
		"no kind":             {`{"apiVersion":"gpu.cleave.dev/v1alpha1"}`, []string{"must set apiVersion and kind"}},
		"no apiVersion":       {`{"kind":"TimeSliceConfig"}`, []string{"must set apiVersion and kind"}},
		"kind of wrong type":  {`{"apiVersion":"gpu.cleave.dev/v1alpha1","kind":{}}`, []string{"kind"}},
		"NVIDIA's":            {`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"}`, []string{`"resource.nvidia.com/v1beta1"`, `"GpuConfig"`, APIVersion}},
		"later version":       {`{"apiVersion":"gpu.cleave.dev/v1","kind":"GpuConfig"}`, []string{`"gpu.cleave.dev/v1"`, APIVersion}},
		"unknown kind":        {`{"apiVersion":"gpu.cleave.dev/v1alpha1","kind":"TimeSliceConfig","shares":4}`, []string{`"TimeSliceConfig"`, "no parameters", "remove"}},
		"kind with a newline": {`{"apiVersion":"gpu.cleave.dev/v1alpha1","kind":"a\nb"}`, []string{`"a\nb"`}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := Check([]byte(tt.raw))
			if err == nil {
				t.Fatal("got no error: parameters that do nothing must be refused")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

func FuzzCheck(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"gpu.cleave.dev/v1alpha1","kind":"TimeSliceConfig"}`))
	f.Add([]byte(nil))
	f.Add([]byte(strings.Repeat("[", 20000)))
	f.Add([]byte("{\"apiVersion\":\"\xff\",\"kind\":\"\\u0000\"}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		err := Check(raw)
		if err == nil {
			t.Fatalf("%q is honoured, but this release has no parameters", raw)
		}
		// The kubelet puts the error into an Event of the pod: gRPC and the API server take valid UTF-8 only.
		if msg := err.Error(); !utf8.ValidString(msg) || strings.ContainsAny(msg, "\n\x00") {
			t.Errorf("error %q is not one line of text", msg)
		}
	})
}
