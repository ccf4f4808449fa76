// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// Numbers without end are found wherever a quantity is decoded, and nowhere else.
func TestCheckQuantities(t *testing.T) {
	const amount, requests = `"exactly":{"capacity":{"requests":{"memory":`, `spec.devices.requests[0].exactly.capacity.requests[memory]`
	claim := func(request string) string { return `{"spec":{"devices":{"requests":[{` + request + `}]}}}` }
	pod := func(container string) string { return `{"spec":{"containers":[{"name":"a",` + container + `}]}}` }
	for name, tt := range map[string]struct {
		raw    string
		object any
		want   string // empty: nothing
	}{
		"an amount":               {claim(amount + `"4Gi"}}}`), &resourceapi.ResourceClaim{}, ""},
		"without end":             {claim(amount + `"1e999999999"}}}`), &resourceapi.ResourceClaim{}, requests},
		"a negative exponent":     {claim(amount + `"1.5E-999999999"}}}`), &resourceapi.ResourceClaim{}, requests},
		"spaces around it":        {claim(amount + `"\n1e999999999 "}}}`), &resourceapi.ResourceClaim{}, requests},
		"no text":                 {claim(amount + `-1e+999}}}`), &resourceapi.ResourceClaim{}, requests},
		"the first of two":        {claim(amount + `"1e999","memory":"4Gi"}}}`), &resourceapi.ResourceClaim{}, requests},
		"capitals":                {strings.ToUpper(claim(`"exactly":{"capacity":{"requests":{"m":"1e999"}}}`)), &resourceapi.ResourceClaim{}, "requests[M]"},
		"an alternative":          {claim(`"firstAvailable":[{},{"capacity":{"requests":{"memory":"1e999"}}}]`), &resourceapi.ResourceClaim{}, "requests[0].firstAvailable[1].capacity.requests[memory]"},
		"what is consumed":        {`{"status":{"allocation":{"devices":{"results":[{"consumedCapacity":{"memory":"1e999"}}]}}}}`, &resourceapi.ResourceClaim{}, "results[0].consumedCapacity[memory]"},
		"names and labels":        {`{"metadata":{"name":"83e6123","labels":{"a":"83e6123"},"annotations":{"a":"[\"83e6123\"]"}},"spec":{"devices":{"requests":[{"name":"83e6123"}]}}}`, &resourceapi.ResourceClaim{}, ""},
		"parameters":              {`{"spec":{"config":[{"opaque":{"driver":"a","parameters":{"b":"1e999"}}}]}}`, &resourceapi.DeviceClass{}, ""},
		"a list in an object's":   {`{"spec":[["1e999"]]}`, &resourceapi.ResourceClaim{}, ""},
		"deep":                    {`{"spec":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}`, &resourceapi.ResourceClaim{}, ""},
		"an image, a limit":       {pod(`"image":"r/app:83e6123","resources":{"limits":{"cpu":"1e999"}}`), &corev1.Pod{}, "spec.containers[0].resources.limits[cpu]"},
		"of an inlined type":      {`{"spec":{"volumes":[{"name":"83e6123","emptyDir":{"sizeLimit":"1e999"}}]}}`, &corev1.Pod{}, "spec.volumes[0].emptyDir.sizeLimit"},
		"an image, a port's name": {pod(`"image":"r/app:83e6123","ports":[{"name":"83e6123"}],"livenessProbe":{"httpGet":{"port":"83e6123"}}`), &corev1.Pod{}, ""},
		"no JSON":                 {`{"spec":`, &corev1.Pod{}, "EOF"},
	} {
		err := CheckQuantities([]byte(tt.raw), tt.object)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q said", name, err, tt.want)
		}
	}
}
