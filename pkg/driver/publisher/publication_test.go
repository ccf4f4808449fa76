// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"reflect"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
)

// What the API server stores of slices counts as what was published.
func TestOwnSliceOf(t *testing.T) {
	taint := resourceapi.DeviceTaint{Key: "k", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	published := []resourceapi.Device{{Name: "a", Taints: []resourceapi.DeviceTaint{taint}}}
	stored := published[0].DeepCopy()
	stored.Taints[0].TimeAdded = &metav1.Time{Time: time.Unix(1, 0)}
	node, elsewhere := "node-1", "node-2"
	slice := func(name, driver string, node *string) *resourceapi.ResourceSlice {
		return &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: driver, NodeName: node, Devices: []resourceapi.Device{*stored}, Pool: resourceapi.ResourcePool{ResourceSliceCount: 3},
			},
		}
	}
	digest := contentOf(published, nil)
	for name, tt := range map[string]struct {
		slice *resourceapi.ResourceSlice
		want  Seen
		ours  bool
	}{
		"ours":           {slice("0001f-d-node-1-x", "d", &node), Seen{31, 3, digest, []string{stored.Name}}, true},
		"another name":   {slice("node-1-x", "d", &node), Seen{-1, 3, digest, []string{stored.Name}}, true},
		"another driver": {slice("00000-e-node-1-x", "e", &node), Seen{}, false},
		"another node":   {slice("00000-d-node-2-x", "d", &elsewhere), Seen{}, false},
		"no node":        {slice("00000-d-x", "d", nil), Seen{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ours := SeenOf(tt.slice, "d", "node-1")
			if !reflect.DeepEqual(got, tt.want) || ours != tt.ours {
				t.Errorf("got %+v, %t, want %+v, %t", got, ours, tt.want, tt.ours)
			}
		})
	}
	if contentOf([]resourceapi.Device{{Name: "a"}}, nil) == digest || contentOf(published, []resourceapi.CounterSet{{Name: "x"}}) == digest {
		t.Error("what differs has one digest")
	}
}

func TestOneByOne(t *testing.T) {
	devices := func(names ...string) nodeslices.Slice {
		return slicesOf(names)[0]
	}
	counters := func(names ...string) nodeslices.Slice {
		var s nodeslices.Slice
		for _, name := range names {
			s.SharedCounters = append(s.SharedCounters, resourceapi.CounterSet{Name: name})
		}
		return s
	}
	tests := map[string]struct {
		was, want []nodeslices.Slice
		yes       bool
	}{
		"the first time":             {nil, []nodeslices.Slice{devices("a")}, false},
		"a taint":                    {[]nodeslices.Slice{devices("a"), devices("b")}, []nodeslices.Slice{devices("a!"), devices("b")}, true},
		"others in their place":      {[]nodeslices.Slice{devices("a"), devices("b")}, []nodeslices.Slice{devices("c"), devices("d")}, true},
		"one more slice":             {[]nodeslices.Slice{devices("a")}, []nodeslices.Slice{devices("a"), devices("b")}, false},
		"one less":                   {[]nodeslices.Slice{devices("a"), devices("b")}, []nodeslices.Slice{devices("a")}, false},
		"a device comes to another":  {[]nodeslices.Slice{devices("a", "b"), devices("c")}, []nodeslices.Slice{devices("a"), devices("b", "c")}, false},
		"a device comes to an empty": {[]nodeslices.Slice{devices("a"), devices("b")}, []nodeslices.Slice{devices(), devices("a")}, false},
		"the same counters":          {[]nodeslices.Slice{counters("x"), devices("a")}, []nodeslices.Slice{counters("x"), devices("b")}, true},
		"counters go":                {[]nodeslices.Slice{counters("x", "y"), devices("a")}, []nodeslices.Slice{counters("x"), devices("b")}, false},
		"counters come":              {[]nodeslices.Slice{counters("x"), devices("a")}, []nodeslices.Slice{counters("x", "y"), devices("b")}, false},
	}
	for name, tt := range tests {
		if got := oneByOne(tt.was, tt.want); got != tt.yes {
			t.Errorf("%s: got %t, want %t", name, got, tt.yes)
		}
	}
}
