// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func ptr[T any](v T) *T { return &v }

func amount(s string) *resource.Quantity { return ptr(resource.MustParse(s)) }

// share is a ShareConfig with these members besides apiVersion and kind.
func share(members string) string {
	if members != "" {
		members = "," + members
	}
	return `{"apiVersion":"gpu.cleave.dev/v1alpha1","kind":"ShareConfig"` + members + `}`
}

func TestDecodeParameters(t *testing.T) {
	tests := map[string]struct {
		members string
		want    ShareConfig
	}{
		"time slice without wishes": {`"timeSlice":{}`, ShareConfig{TimeSlice: &TimeSliceConfig{}}},
		"default interval":          {`"timeSlice":{"interval":"Default"}`, ShareConfig{TimeSlice: &TimeSliceConfig{Interval: IntervalDefault}}},
		"short interval":            {`"timeSlice":{"interval":"Short"}`, ShareConfig{TimeSlice: &TimeSliceConfig{Interval: IntervalShort}}},
		"medium interval":           {`"timeSlice":{"interval":"Medium"}`, ShareConfig{TimeSlice: &TimeSliceConfig{Interval: IntervalMedium}}},
		"long interval":             {`"timeSlice":{"interval":"Long"}`, ShareConfig{TimeSlice: &TimeSliceConfig{Interval: IntervalLong}}},
		"MPS without wishes":        {`"mps":{}`, ShareConfig{MPS: &MPSConfig{}}},
		"normal priority":           {`"mps":{"priority":"Normal"}`, ShareConfig{MPS: &MPSConfig{Priority: PriorityNormal}}},
		"least threads":             {`"mps":{"activeThreadPercentage":1}`, ShareConfig{MPS: &MPSConfig{ActiveThreadPercentage: ptr(int32(1))}}},
		"least memory":              {`"mps":{"pinnedDeviceMemoryLimit":"1Mi"}`, ShareConfig{MPS: &MPSConfig{PinnedDeviceMemoryLimit: amount("1Mi")}}},
		"memory as a number":        {`"mps":{"pinnedDeviceMemoryLimit":1073741824}`, ShareConfig{MPS: &MPSConfig{PinnedDeviceMemoryLimit: amount("1073741824")}}},
		"memory with a fraction":    {`"mps":{"pinnedDeviceMemoryLimit":"1.5Gi"}`, ShareConfig{MPS: &MPSConfig{PinnedDeviceMemoryLimit: amount("1536Mi")}}},
		"all of MPS": {
			`"mps":{"activeThreadPercentage":100,"pinnedDeviceMemoryLimit":"20Gi","priority":"BelowNormal"}`,
			ShareConfig{MPS: &MPSConfig{ActiveThreadPercentage: ptr(int32(100)), PinnedDeviceMemoryLimit: amount("20Gi"), Priority: PriorityBelowNormal}},
		},
		"both tiers": {`"timeSlice":{"interval":"Long"},"mps":{}`, ShareConfig{TimeSlice: &TimeSliceConfig{Interval: IntervalLong}, MPS: &MPSConfig{}}},
		"null tier":  {`"timeSlice":null,"mps":{"priority":null}`, ShareConfig{MPS: &MPSConfig{}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := DecodeParameters([]byte(share(tt.members)))
			if err != nil {
				t.Fatal(err)
			}
			tt.want.TypeMeta = metav1.TypeMeta{APIVersion: APIVersion, Kind: ShareConfigKind}
			if diff := cmp.Diff(&tt.want, got); diff != "" {
				t.Errorf("parameters (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeParameters_Errors(t *testing.T) {
	const v1alpha1 = `"apiVersion":"gpu.cleave.dev/v1alpha1"`
	const noQuantity = "must be a quantity such as 512Mi"
	tests := map[string]struct {
		raw  string
		want []string
	}{
		"nothing":               {"", []string{"JSON object with apiVersion and kind"}},
		"no JSON":               {"interval: Long", []string{"JSON object with apiVersion and kind"}},
		"null":                  {"null", []string{"set apiVersion and kind", APIVersion, ShareConfigKind}},
		"number":                {"4", []string{"JSON object with apiVersion and kind"}},
		"array":                 {"[{}]", []string{"JSON object with apiVersion and kind"}},
		"string":                {`"ShareConfig"`, []string{"JSON object with apiVersion and kind"}},
		"truncated":             {`{"apiVersion":"gpu.cleave.dev/v1al`, []string{"JSON object with apiVersion and kind"}},
		"something after":       {share(`"mps":{}`) + "{}", []string{"after top-level value"}},
		"empty object":          {"{}", []string{"set apiVersion and kind"}},
		"no kind":               {"{" + v1alpha1 + "}", []string{"set apiVersion and kind"}},
		"no apiVersion":         {`{"kind":"ShareConfig"}`, []string{"set apiVersion and kind"}},
		"kind of wrong type":    {"{" + v1alpha1 + `,"kind":{}}`, []string{"kind"}},
		"apiVersion twice":      {"{" + v1alpha1 + "," + v1alpha1 + `,"kind":"ShareConfig","mps":{}}`, []string{`duplicate field "apiVersion"`}},
		"NVIDIA's":              {`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS"}}`, []string{`"resource.nvidia.com/v1beta1"`, `"GpuConfig"`, APIVersion}},
		"later version":         {`{"apiVersion":"gpu.cleave.dev/v1","kind":"ShareConfig","mps":{}}`, []string{`"gpu.cleave.dev/v1"`, APIVersion}},
		"version without group": {`{"apiVersion":"v1alpha1","kind":"ShareConfig","mps":{}}`, []string{`"v1alpha1"`, APIVersion}},
		"a policy":              {"{" + v1alpha1 + `,"kind":"NodePolicy"}`, []string{`unknown kind "NodePolicy"`, ShareConfigKind}},
		"kind in lower case":    {"{" + v1alpha1 + `,"kind":"shareconfig"}`, []string{`unknown kind "shareconfig"`, ShareConfigKind}},
		"kind with a newline":   {"{" + v1alpha1 + `,"kind":"a\nb"}`, []string{`"a\nb"`}},
		"no tier":               {share(""), []string{"set timeSlice or mps"}},
		"null tiers":            {share(`"mps":null`), []string{"set timeSlice or mps"}},

		"unknown field":         {share(`"mps":{},"shares":4`), []string{`unknown field "shares"`}},
		"unknown deep field":    {share(`"mps":{"threads":4}`), []string{`unknown field "mps.threads"`}},
		"field in another case": {share(`"timeslice":{}`), []string{`unknown field "timeslice"`}},
		"two unknown fields":    {share(`"timeSlice":{"a":1},"b":2`), []string{`"timeSlice.a"`, `"b"`}},
		"field twice":           {share(`"mps":{},"mps":{}`), []string{`duplicate field "mps"`}},
		"deep field twice":      {share(`"timeSlice":{"interval":"Long","interval":"Long"}`), []string{`duplicate field "timeSlice.interval"`}},

		"tier of wrong type":        {share(`"mps":[]`), []string{"mps: Invalid value: must be an object, not a list"}},
		"interval of wrong type":    {share(`"timeSlice":{"interval":2}`), []string{"timeSlice.interval", "must be text, not a whole number: put it in quotes"}},
		"unknown interval":          {share(`"timeSlice":{"interval":"long"}`), []string{"timeSlice.interval", `"long"`, `"Default", "Short", "Medium", "Long"`}},
		"unknown priority":          {share(`"mps":{"priority":"High"}`), []string{"mps.priority", `"High"`, `"Normal", "BelowNormal"`}},
		"no threads":                {share(`"mps":{"activeThreadPercentage":0}`), []string{"mps.activeThreadPercentage", "0", "1 to 100"}},
		"too many threads":          {share(`"mps":{"activeThreadPercentage":101}`), []string{"mps.activeThreadPercentage", "101", "1 to 100"}},
		"fewer threads than none":   {share(`"mps":{"activeThreadPercentage":-1}`), []string{"mps.activeThreadPercentage", "-1"}},
		"part of a percent":         {share(`"mps":{"activeThreadPercentage":1.5}`), []string{"mps.activeThreadPercentage", "1.5"}},
		"threads beyond a number":   {share(`"mps":{"activeThreadPercentage":4294967297}`), []string{"mps.activeThreadPercentage: Invalid value: 4294967297: is out of range"}},
		"threads as text":           {share(`"mps":{"activeThreadPercentage":"50"}`), []string{"mps.activeThreadPercentage", "must be a whole number, not text"}},
		"too little memory":         {share(`"mps":{"pinnedDeviceMemoryLimit":"1048575"}`), []string{"mps.pinnedDeviceMemoryLimit", "1Mi or more"}},
		"less memory than none":     {share(`"mps":{"pinnedDeviceMemoryLimit":"-1Gi"}`), []string{"mps.pinnedDeviceMemoryLimit", "-1Gi"}},
		"part of a byte":            {share(`"mps":{"pinnedDeviceMemoryLimit":"2000000.5"}`), []string{"mps.pinnedDeviceMemoryLimit", "whole number"}},
		"memory far beyond":         {share(`"mps":{"pinnedDeviceMemoryLimit":"1e99"}`), []string{"mps.pinnedDeviceMemoryLimit", "whole number"}},
		"memory as of NVIDIA":       {share(`"mps":{"pinnedDeviceMemoryLimit":"1024M B"}`), []string{"mps.pinnedDeviceMemoryLimit", noQuantity}},
		"empty memory":              {share(`"mps":{"pinnedDeviceMemoryLimit":""}`), []string{"mps.pinnedDeviceMemoryLimit", noQuantity}},
		"memory of wrong type":      {share(`"mps":{"pinnedDeviceMemoryLimit":{}}`), []string{"mps.pinnedDeviceMemoryLimit", noQuantity}},
		"memory that is true":       {share(`"mps":{"pinnedDeviceMemoryLimit":true}`), []string{"mps.pinnedDeviceMemoryLimit", noQuantity}},
		"two things wrong":          {share(`"timeSlice":{"interval":"x"},"mps":{"activeThreadPercentage":0}`), []string{"timeSlice.interval", "mps.activeThreadPercentage"}},
		"memory without end":        {share(`"mps":{"pinnedDeviceMemoryLimit":"1e2147483647"}`), []string{"mps.pinnedDeviceMemoryLimit", noQuantity}},
		"nothing, without end":      {share(`"mps":{"pinnedDeviceMemoryLimit":"0e999999999"}`), []string{"mps.pinnedDeviceMemoryLimit", noQuantity}},
		"nothing, ever less":        {share(`"mps":{"pinnedDeviceMemoryLimit":"0e-999999999"}`), []string{"mps.pinnedDeviceMemoryLimit", noQuantity}},
		"memory hidden by another":  {share(`"mps":{"pinnedDeviceMemoryLimit":"1e999999999","pinnedDeviceMemoryLimit":"1Gi"}`), []string{`duplicate field "mps.pinnedDeviceMemoryLimit"`}},
		"tier hidden by another":    {share(`"mps":{"pinnedDeviceMemoryLimit":"1e999999999"},"mps":{}`), []string{`duplicate field "mps"`}},
		"memory of countless parts": {share(`"mps":{"pinnedDeviceMemoryLimit":"1` + strings.Repeat("0", 9000) + `"}`), []string{"mps.pinnedDeviceMemoryLimit", noQuantity}},
		"huge":                      {share(`"mps":{"priority":"` + strings.Repeat("x", 1<<20) + `"}`), []string{"more than 1048576"}},
		"deep":                      {share(`"mps":` + strings.Repeat("[", 100_000)), []string{"parameters"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := DecodeParameters([]byte(tt.raw))
			checkRefused(t, got == nil, err, append(tt.want, "parameters: "))
		})
	}
}

// checkRefused checks an error that the kubelet makes an Event of.
func checkRefused(t *testing.T, nothing bool, err error, want []string) {
	t.Helper()
	if err == nil {
		t.Fatal("got no error")
	}
	if !nothing {
		t.Error("got something alongside the error")
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
	checkText(t, err)
}

// checkText checks that an error is one line of valid UTF-8 that can be printed.
func checkText(t *testing.T, err error) {
	t.Helper()
	text := err.Error()
	if text == "" || !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("error %q is not one line of text", text)
	}
}

func FuzzParameters(f *testing.F) {
	for _, members := range []string{
		"", `"mps":{"activeThreadPercentage":25,"pinnedDeviceMemoryLimit":"20Gi","priority":"Normal"}`, `"timeSlice":{"interval":"Long"}`,
		`"a\nb":1,"c\u0000":2`, `"mps":{"pinnedDeviceMemoryLimit":"1e999999999"}`, `"mps":{"pinnedDeviceMemoryLimit":1e308}`,
	} {
		f.Add([]byte(share(members)))
	}
	f.Add([]byte(nil))
	f.Add([]byte(strings.Repeat("[", 20000)))
	f.Add([]byte("{\"apiVersion\":\"\xff\",\"kind\":\"\\u0000\"}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := DecodeParameters(raw)
		if err != nil {
			checkText(t, err)
			return
		}
		if c.TimeSlice == nil && c.MPS == nil || c.APIVersion != APIVersion || c.Kind != ShareConfigKind {
			t.Errorf("%q is honoured as %+v", raw, c)
		}
		if c.MPS != nil && c.MPS.PinnedDeviceMemoryLimit != nil && c.MPS.PinnedDeviceMemoryLimit.Value() < 1<<20 {
			t.Errorf("%q: a memory limit of %d", raw, c.MPS.PinnedDeviceMemoryLimit.Value())
		}
	})
}
