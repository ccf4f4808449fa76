// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"
)

// sharesNamespace has the templates of a file whose requests are those of the map, by name.
func sharesNamespace(t *testing.T, templates map[string]string) Namespace {
	t.Helper()
	in := Namespace{Templates: map[string]*resourceapi.ResourceClaimTemplate{}}
	for name, requests := range templates {
		template := &resourceapi.ResourceClaimTemplate{}
		if err := yaml.UnmarshalStrict([]byte("{spec: {spec: {devices: {requests: ["+requests+"]}}}}"), template); err != nil {
			t.Fatal(err)
		}
		in.Templates[name] = template
	}
	return in
}

// A container finds the device of one MPS server. What it gets beside it is said, and only that.
func TestMiswirings_Wasted(t *testing.T) {
	exactly := func(name, class, more string) string {
		return "{name: " + name + ", exactly: {deviceClassName: " + class + more + "}}"
	}
	where := func(expression string) string { return ", selectors: [{cel: {expression: '" + expression + "'}}]" }
	in := sharesNamespace(t, map[string]string{
		"share": exactly("s", "mps.cleave.dev", ""),
		"gpu":   exactly("g", "gpu.cleave.dev", ""),
		"gpus":  exactly("g", "gpu.cleave.dev", ", count: 2"),
		"admin": exactly("g", "gpu.cleave.dev", ", allocationMode: All, adminAccess: true"),
		"nic":   exactly("n", "nic.example.com", ""),
		"both":  exactly("s", "mps.cleave.dev", "") + ", " + exactly("g", "gpu.cleave.dev", ""),
		"slice": exactly("s", "mig-mps.cleave.dev", "") + ", " + exactly("t", "timeslice.cleave.dev", ""),
		"two":   exactly("a", "mps.cleave.dev", "") + ", " + exactly("b", "mps.cleave.dev", ""),
		"count": exactly("s", "mps.cleave.dev", ", count: 2"),
		"all":   exactly("s", "mine.example.com", ", allocationMode: All"+where(`device.attributes["gpu.cleave.dev"].type.endsWith("mps")`)),
		"first": "{name: f, firstAvailable: [{name: p, deviceClassName: mig.cleave.dev}, {name: s, deviceClassName: mps.cleave.dev}]}",
		"mine": exactly("m", "mine.example.com", where(`device.attributes["gpu.cleave.dev"].type == "mps" && device.attributes["gpu.cleave.dev"].productName == "x"`)) +
			", " + exactly("g", "gpu.cleave.dev", ""),
		"shared": exactly("m", "mine.example.com", where("device.allowMultipleAllocations")) + ", " + exactly("g", "gpu.cleave.dev", ""),
		"no mps": exactly("m", "mine.example.com", where(`device.attributes["gpu.cleave.dev"].type != "mps" && !device.attributes["gpu.cleave.dev"].type.startsWith("mig-")`)) +
			", " + exactly("g", "gpu.cleave.dev", ""),
		"open": exactly("m", "mine.example.com", where(`device.attributes["gpu.cleave.dev"].productName == "x"`)) + ", " + exactly("g", "gpu.cleave.dev", ""),
	})
	const (
		finds = ": its CUDA programs find only the device of one MPS server, and the rest is wasted. "
		apart = "Give each a container of its own"
		named = apart + ", which names its request in resources.claims"
		one   = "Ask for one share, by a claim with more cores or memory"
	)
	tests := map[string]struct {
		// claims are templates, by the names of which the containers name them.
		claims     []string
		containers string
		want       []string
	}{
		"a share":                     {[]string{"share"}, "{name: a, resources: {claims: [{name: share}]}}", nil},
		"GPUs":                        {[]string{"gpu", "gpus"}, "{name: a, resources: {claims: [{name: gpu}, {name: gpus}]}}", nil},
		"a share and a network card":  {[]string{"share", "nic"}, "{name: a, resources: {claims: [{name: share}, {name: nic}]}}", nil},
		"a share and a view of all":   {[]string{"share", "admin"}, "{name: a, resources: {claims: [{name: share}, {name: admin}]}}", nil},
		"in containers, by claim":     {[]string{"share", "gpu"}, "{name: a, resources: {claims: [{name: share}]}}, {name: b, resources: {claims: [{name: gpu}]}}", nil},
		"in containers, by request":   {[]string{"both"}, "{name: a, resources: {claims: [{name: both, request: s}]}}, {name: b, resources: {claims: [{name: both, request: g}]}}", nil},
		"two shares in containers":    {[]string{"two"}, "{name: a, resources: {claims: [{name: two, request: a}]}}, {name: b, resources: {claims: [{name: two, request: b}]}}", nil},
		"one share for two":           {[]string{"share"}, "{name: a, resources: {claims: [{name: share}]}}, {name: b, resources: {claims: [{name: share}]}}", nil},
		"one of two kinds":            {[]string{"first"}, "{name: a, resources: {claims: [{name: first}]}}", nil},
		"a type that is no share":     {[]string{"no mps"}, "{name: a, resources: {claims: [{name: no mps}]}}", nil},
		"a type that is left open":    {[]string{"open"}, "{name: a, resources: {claims: [{name: open}]}}", nil},
		"two claims":                  {[]string{"share", "gpu"}, "{name: a, resources: {claims: [{name: share}, {name: gpu}]}}", []string{`container a gets an MPS share (request "s" of claim "share") and other devices (request "g" of claim "gpu")` + finds + apart}},
		"a whole claim":               {[]string{"both"}, "{name: a, resources: {claims: [{name: both}]}}", []string{`container a gets an MPS share (request "s" of claim "both") and other devices (request "g" of claim "both")` + finds + named}},
		"two requests":                {[]string{"slice"}, "{name: a, resources: {claims: [{name: slice, request: s}, {name: slice, request: t}]}}", []string{`container a gets an MPS share (request "s" of claim "slice") and other devices (request "t" of claim "slice")` + finds + named}},
		"two shares":                  {[]string{"two"}, "{name: a, resources: {claims: [{name: two}]}}", []string{`container a gets several MPS shares (request "a" of claim "two", request "b" of claim "two")` + finds + "Ask for one share with more cores or memory, or g" + strings.TrimPrefix(named, "G")}},
		"two shares of one request":   {[]string{"count"}, "{name: a, resources: {claims: [{name: count}]}}", []string{`container a gets several MPS shares (request "s" of claim "count")` + finds + one}},
		"all shares":                  {[]string{"all"}, "{name: a, resources: {claims: [{name: all}]}}", []string{`container a gets several MPS shares (request "s" of claim "all")` + finds + one}},
		"in an init container":        {[]string{"gpu", "both"}, "{name: a, resources: {claims: [{name: gpu}]}}], initContainers: [{name: i, resources: {claims: [{name: both}]}}", []string{`container i gets an MPS share (request "s" of claim "both") and other devices (request "g" of claim "both")` + finds + named}},
		"perhaps a share":             {[]string{"first", "gpu"}, "{name: a, resources: {claims: [{name: first}, {name: gpu}]}}", []string{`container a may get an MPS share (request "f" of claim "first") and other devices (request "g" of claim "gpu")` + finds + apart}},
		"a share, and perhaps two":    {[]string{"first", "share"}, "{name: a, resources: {claims: [{name: first}, {name: share}]}}", []string{`container a gets an MPS share (request "s" of claim "share") and other devices (request "f" of claim "first")` + finds + apart}},
		"a class of another name":     {[]string{"mine"}, "{name: a, resources: {claims: [{name: mine}]}}", []string{`container a gets an MPS share (request "m" of claim "mine") and other devices (request "g" of claim "mine")` + finds + named}},
		"a class of all shares":       {[]string{"shared"}, "{name: a, resources: {claims: [{name: shared}]}}", []string{`container a may get an MPS share (request "m" of claim "shared") and other devices (request "g" of claim "shared")` + finds + named}},
		"a resource, too":             {[]string{"share"}, "{name: a, resources: {claims: [{name: share}], requests: {nvidia.com/gpu: 1}}}", []string{`container a gets an MPS share (request "s" of claim "share") and other devices (nvidia.com/gpu)` + finds + apart}},
		"two shares by a resource":    {nil, "{name: a, resources: {requests: {deviceclass.resource.kubernetes.io/mps.cleave.dev: 2}}}", []string{"container a gets several MPS shares (2 of deviceclass.resource.kubernetes.io/mps.cleave.dev)" + finds + one}},
		"a share and a GPU, by names": {nil, "{name: a, resources: {requests: {deviceclass.resource.kubernetes.io/mps.cleave.dev: 1, nvidia.com/gpu: 2}}}", []string{"container a gets an MPS share (deviceclass.resource.kubernetes.io/mps.cleave.dev) and other devices (2 of nvidia.com/gpu)" + finds + apart}},
		"a claim that is not known":   {[]string{"share", "none"}, "{name: a, resources: {claims: [{name: share}, {name: none}]}}", nil},
	}
	b := newBed(t)
	mine := &resourceapi.DeviceClass{}
	mine.Name = "mine.example.com"
	mine.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.cleave.dev"`}}}
	b.Classes = append(b.Classes, mine)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{}
			if err := yaml.UnmarshalStrict([]byte("{metadata: {namespace: team, name: p}, spec: {containers: ["+tt.containers+"]}}"), pod); err != nil {
				t.Fatal(err)
			}
			for _, of := range tt.claims {
				pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: of, ResourceClaimTemplateName: &of})
			}
			var got []string
			for _, m := range Miswirings(pod, in, b.Objects) {
				if m.Lost {
					m.Message = "lost: " + m.Message
				}
				got = append(got, m.Message)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
		})
	}
}

// The same claim by two names is not two; two claims of one template are.
func TestMiswirings_WastedByName(t *testing.T) {
	b := newBed(t)
	in := sharesNamespace(t, map[string]string{"share": "{name: s, exactly: {deviceClassName: mps.cleave.dev}}"})
	claim := &resourceapi.ResourceClaim{Spec: in.Templates["share"].Spec.Spec}
	claim.Name = "share"
	in.Claims = map[string]*resourceapi.ResourceClaim{"share": claim}
	for name, tt := range map[string]struct {
		of   corev1.PodResourceClaim
		want int
	}{
		"a claim":    {corev1.PodResourceClaim{ResourceClaimName: &claim.Name}, 0},
		"a template": {corev1.PodResourceClaim{ResourceClaimTemplateName: &claim.Name}, 1},
	} {
		pod := &corev1.Pod{}
		for _, as := range []string{"x", "y"} {
			tt.of.Name = as
			pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, tt.of)
		}
		if got := Miswirings(using(pod), in, b.Objects); len(got) != tt.want {
			t.Errorf("%s, twice: got %v, want %d mistakes", name, got, tt.want)
		}
	}
}
