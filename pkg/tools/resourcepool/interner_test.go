// SPDX-License-Identifier: Apache-2.0

package resourcepool

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
)

// modelSlices are those of a node of eight H100.
func modelSlices(t testing.TB, node string) []resourceapi.ResourceSlice {
	t.Helper()
	gpus, err := models.Load("hgx-h100")
	if err != nil {
		t.Fatal(err)
	}
	return nodeslices.Objects(policy.Apply(&v1alpha1.NodePolicy{}, gpus, policy.Capabilities{}), "gpu.example.com", node).Items
}

// Slices are the same after sharing, and equal maps of equal nodes are one.
func TestInterner_Transform(t *testing.T) {
	var in Interner
	a, b := modelSlices(t, "n1"), modelSlices(t, "n2")
	same := func(x, y any) bool { return reflect.ValueOf(x).Pointer() == reflect.ValueOf(y).Pointer() }
	shared := 0
	for i := range a {
		before := a[i].DeepCopy()
		for _, slice := range []*resourceapi.ResourceSlice{&a[i], &b[i]} {
			if got, err := in.Transform(slice); err != nil || got != slice {
				t.Fatalf("got %v, %v", got, err)
			}
		}
		if diff := cmp.Diff(before, &a[i]); diff != "" {
			t.Errorf("slice %d changed (-before +after):\n%s", i, diff)
		}
		for j := range a[i].Spec.Devices {
			x, y := &a[i].Spec.Devices[j], &b[i].Spec.Devices[j]
			if !same(x.Attributes, y.Attributes) || len(x.Capacity) > 0 && !same(x.Capacity, y.Capacity) {
				t.Errorf("device %s: the attributes or capacities of two equal nodes are two", x.Name)
			}
			if len(x.ConsumesCounters) > 0 && same(x.ConsumesCounters[0].Counters, y.ConsumesCounters[0].Counters) {
				shared++
			}
		}
	}
	if shared == 0 {
		t.Error("no device shares what it consumes with the same of another node")
	}
	if got, err := in.Transform("another object"); err != nil || got != "another object" {
		t.Errorf("another object: %v, %v", got, err)
	}
}
