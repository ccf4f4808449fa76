// SPDX-License-Identifier: Apache-2.0

package shortform

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

var profiles = []string{"1g.10gb", "1g.10gb+me", "1g.20gb", "3g.40gb"}

var standard = Options{Driver: "gpu.cleave.dev", CPUClass: CPUClass, NICClass: NICClass, NUMANode: string(NUMANodeAttribute)}

func TestParse(t *testing.T) {
	amount := func(s string) *resource.Quantity { q := resource.MustParse(s); return &q }
	tests := map[string]Form{
		"4 gpus, 48 cpus, 4 nics, one numa node": {Devices: 4, Kind: "gpu", CPUs: 48, NICs: 4, Conditions: []Condition{OneNUMANode}},
		"gpu":                                    {Devices: 1, Kind: "gpu"},
		"  One GPU ,one   NVLink domain, one numa node  ": {Devices: 1, Kind: "gpu", Conditions: []Condition{OneNUMANode, OneNVLinkDomain}},
		"one pcie root, 1 nic, 1 gpu, 1 cpu":              {Devices: 1, Kind: "gpu", CPUs: 1, NICs: 1, Conditions: []Condition{OnePCIeRoot}},
		"2 1g.10gb+me, 1 numa node":                       {Devices: 2, Kind: "1g.10gb+me", Conditions: []Condition{OneNUMANode}},
		"1g.10gb":                                         {Devices: 1, Kind: "1g.10gb"},
		"2 shared, memory >= 20Gi":                        {Devices: 2, Kind: "shared", Memory: amount("20Gi")},
		"mps, memory≥20gib":                               {Devices: 1, Kind: "mps", Memory: amount("20Gi")},
		"2 gpus, memory >= 80 GB":                         {Devices: 2, Kind: "gpu", Memory: amount("80G")},
		"2 gpus, memory >= 8589934592":                    {Devices: 2, Kind: "gpu", Memory: amount("8589934592")},
	}
	for text, want := range tests {
		got, err := Parse(text, profiles)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if diff := cmp.Diff(&want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}

func TestParse_Errors(t *testing.T) {
	tests := map[string]string{
		"":                                 "a part is empty: expected are parts between commas",
		"4 gpus,":                          "a part is empty",
		"4":                                `"4" has a number alone: say of what, such as "4 gpus"`,
		"4 gpuss":                          `"4 gpuss" is not known: did you mean "4 gpus"?; expected are parts`,
		"4gpus":                            `did you mean "4 gpus"?`,
		"four gpus":                        `"four gpus" is not known; expected are`,
		"2 1g.10g":                         `did you mean "2 1g.10gb"?`,
		"1 gpu, one nvlink":                `did you mean "one nvlink domain"?`,
		"1 gpu, one numma node":            `did you mean "one numa node"?`,
		"1 gpu, 2 numa nodes":              `did you mean "one numa node"?`,
		"1 gpu, 2 numa node":               `"2 numa node": a condition is about one: write "one numa node"`,
		"1 gpu, one numa node, numa node":  `"numa node" is there twice`,
		"0 gpus":                           `"0 gpus": 0 is not a number from 1 on`,
		"-1 gpus":                          "-1 is not a number from 1 on",
		"99999999999 gpus":                 "99999999999 is not a number from 1 on",
		"1 gpu, 1 gpu":                     `"1 gpu": GPUs are requested twice: add the numbers up`,
		"1 gpu, 2 cpus, 2 cpus":            "cpus are requested twice",
		"1 gpu, 1 1g.10gb":                 `"1 1g.10gb": the claim has gpu already: write a claim for each kind of device`,
		"48 cpus":                          `it asks for no GPU: add "1 gpu"`,
		"1 gpu, 9000 cpus":                 "9000 cpus are more than a node has: at most 8192",
		"30 gpus, 2 nics, 1 cpu":           "it asks for 33 devices, of which a claim can have 32",
		"2 mps":                            "a container can use one MPS server only",
		"2 1g.10gb, one nvlink domain":     "1g.10gb: partitions have no NVLink",
		"1 gpu, memory":                    `"memory": expected is an amount such as "memory >= 40Gi"`,
		"1 gpu, memory 40Gi":               "expected is an amount",
		"1 gpu, memory >= many":            "\"many\" is not an amount: expected is one such as 40Gi",
		"1 gpu, memory >= -1Gi":            "\"-1gi\" is not an amount",
		"1 gpu, memory >= 1e99999":         "\"1e99999\" is not an amount", // with more digits, a comparison would take for ever
		"1 gpu, memory >= 10000g":          `"memory >= 10000g": no GPU has more memory than 2Ti`,
		"1 gpu, memory >= 40":              `40 is less than 1Mi: did you mean "memory >= 40Gi"?`,
		"1 gpu, memory >= 1Gi, memory>= 2": "memory is there twice",
		"1 gpu, memroy >= 1Gi":             `is not known`,
	}
	for text, want := range tests {
		if _, err := Parse(text, profiles); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

func TestTemplate(t *testing.T) {
	form, err := Parse("4 gpus, memory >= 70Gi, 48 cpus, 4 nics, one numa node, one pcie root, one nvlink domain", profiles)
	if err != nil {
		t.Fatal(err)
	}
	got := form.Template(standard)
	attribute := func(name string) *resourceapi.FullyQualifiedName {
		n := resourceapi.FullyQualifiedName(name)
		return &n
	}
	const exact = resourceapi.DeviceAllocationModeExactCount
	want := resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{
			{Name: "cpus", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "dra.cpu", AllocationMode: exact, Count: 1,
				Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"dra.cpu/cpu": resource.MustParse("48")}}}},
			{Name: "nics", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "dranet.net", AllocationMode: exact, Count: 4}},
			{Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.cleave.dev", AllocationMode: exact, Count: 4,
				Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
					Expression: `device.capacity["gpu.cleave.dev"].memory.compareTo(quantity("70Gi")) >= 0`}}}}},
		},
		Constraints: []resourceapi.DeviceConstraint{
			{MatchAttribute: attribute("resource.kubernetes.io/numaNode")},
			{Requests: []string{"gpus", "nics"}, MatchAttribute: attribute("resource.kubernetes.io/pcieRoot")},
			{Requests: []string{"gpus"}, MatchAttribute: attribute("gpu.cleave.dev/nvlinkGroup")},
		},
	}
	if diff := cmp.Diff(want, got.Spec.Spec.Devices); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got.Name != "4-gpus-48-cpus-4-nics" {
		t.Errorf("got name %s", got.Name)
	}
}

func TestForm_Notes(t *testing.T) {
	for text, want := range map[string]int{
		"1 gpu": 0, "1 gpu, 1 nic": 1, "1 gpu, 1 nic, one pcie root": 0, "1 gpu, 1 cpu, one numa node": 1, "1 gpu, 1 cpu, one pcie root": 2,
	} {
		form, err := Parse(text, profiles)
		if err != nil {
			t.Fatal(err)
		}
		if got := form.Notes(); len(got) != want {
			t.Errorf("%s: got %q, want %d notes", text, got, want)
		}
	}
}
