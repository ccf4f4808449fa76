// SPDX-License-Identifier: Apache-2.0

package selector

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
)

func mustCompile(t *testing.T, c *Cache, expression string) *Selector {
	t.Helper()
	all, err := c.Compile(expression)
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// What an expression looks at is known where all of it is spelled out.
func TestSelector_Names(t *testing.T) {
	type answer struct {
		Names []string
		Exact bool
		Words []string
	}
	for expression, want := range map[string]answer{
		`device.driver == "a"`: {nil, true, []string{"a"}},
		`device.attributes["a.b"].x == "y" && device.attributes["a.b"].?z.orValue(1) == 1`: {
			[]string{"attributes a.b x", "attributes a.b z"}, true, []string{"x", "y", "z"},
		},
		`device.capacity["a.b"].memory.compareTo(quantity("1Gi")) >= 0`: {
			[]string{"capacity a.b memory"}, true, []string{"memory", "1Gi"},
		},
		`device.attributes["a.b"].version.isGreaterThan(semver("1.0.0"))`: {
			[]string{"attributes a.b version"}, true, []string{"version", "1.0.0"},
		},
		`"x" in device.attributes["a.b"]`:           {nil, false, []string{"x", "a.b"}},
		`device.attributes[device.driver].x == "y"`: {nil, false, []string{"x", "y"}},
		`device.attributes.exists(d, d == "a")`:     {nil, false, []string{"a"}},
	} {
		s := mustCompile(t, NewCache(), expression)
		got := answer{Exact: s.exact, Words: s.Words()}
		for _, n := range s.names {
			got.Names = append(got.Names, n.kind+" "+n.domain+" "+n.id)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", expression, diff)
		}
	}
}

func TestSelector_Terms(t *testing.T) {
	for expression, want := range map[string][]string{
		`true`: {"true"},
		`device.driver == "a" && (true && 1 < 2)`: {`device.driver == "a"`, "true", "1 < 2"},
		`true || false`: {"true || false"},
	} {
		if diff := cmp.Diff(want, mustCompile(t, NewCache(), expression).Terms()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", expression, diff)
		}
	}
}

const driver = "gpu.example.com"

// typed is a device with a type and a UUID of its own.
func typed(name, kind string) *resourceapi.Device {
	uuid := "UUID-" + name
	return &resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"type": {StringValue: &kind}, driver + "/uuid": {StringValue: &uuid},
	}}
}

// Devices that differ in what is looked at get answers of their own, and equal ones share one.
func TestSelector_Memo(t *testing.T) {
	c := NewCache()
	matching := func(expression string) (names []string) {
		for _, d := range []*resourceapi.Device{typed("whole", "gpu"), typed("half-1", "mig"), typed("half-0", "mig")} {
			ok, err := MatchAll(t.Context(), []*Selector{mustCompile(t, c, expression)}, driver, d)
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				names = append(names, d.Name)
			}
		}
		return names
	}
	for range 3 {
		if got := matching(`device.attributes["gpu.example.com"].type == "mig"`); !slices.Equal(got, []string{"half-1", "half-0"}) {
			t.Errorf("by type: %v", got)
		}
		if got := matching(`device.attributes["gpu.example.com"].uuid == "UUID-half-1"`); !slices.Equal(got, []string{"half-1"}) {
			t.Errorf("by UUID: %v", got)
		}
	}
	evaluations := map[*Selector]int{}
	for key := range c.answers {
		evaluations[key.selector]++
	}
	if diff := cmp.Diff([]int{2, 3}, slices.Sorted(maps.Values(evaluations))); diff != "" {
		t.Errorf("evaluations (-want +got):\n%s", diff)
	}
	// Expressions that name UUIDs fill one bounded memory, not one each.
	for i := range maxAnswers - len(c.answers) {
		c.answers[answerKey{device: fmt.Sprint(i)}] = true
	}
	for i := range 3 {
		matching(fmt.Sprintf(`device.attributes["gpu.example.com"].uuid == "UUID-%d"`, i))
	}
	if len(c.answers) != 9 {
		t.Errorf("%d answers are remembered, want the 9 new ones", len(c.answers))
	}
}
