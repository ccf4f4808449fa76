// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kube-scheduler/framework"
)

// listed is a view of devices with some slices.
type listed struct {
	framework.SharedDRAManager
	slices []*resourceapi.ResourceSlice
}

func (l listed) ResourceSlices() framework.ResourceSliceLister { return listedSlices(l) }

type listedSlices listed

func (l listedSlices) ListWithDeviceTaintRules() ([]*resourceapi.ResourceSlice, error) {
	return l.slices, nil
}

func slice(name, pool, node string) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.cleave.dev", Pool: resourceapi.ResourcePool{Name: pool},
	}}
	if node != "" {
		s.Spec.NodeName = &node
	}
	return s
}

func TestCandidateSlices_Limited(t *testing.T) {
	view := &CandidateSlices{SharedDRAManager: listed{slices: []*resourceapi.ResourceSlice{
		slice("a-1", "a", "node-a"), slice("a-2", "a", "node-a"), slice("b-1", "b", "node-b"),
		slice("attached", "fabric", ""),                                      // by a selector, or for all nodes
		slice("wide-a", "wide", "node-a"), slice("wide-c", "wide", "node-c"), // a pool of two nodes
		slice("mixed-c", "mixed", "node-c"), slice("mixed-all", "mixed", ""), // a pool with a part that names a node
		slice("named", "rack", "node-b"), slice("stray", "a", "node-c"), // by another name than the node's, and by that of another node
	}}}
	names := func() []string {
		all, err := view.ResourceSlices().ListWithDeviceTaintRules()
		must(t, err)
		var names []string
		for _, s := range all {
			names = append(names, s.Name)
		}
		return names
	}
	everything := names()
	if len(everything) != 10 {
		t.Fatalf("without a limit: %v", everything)
	}
	for name, tt := range map[string]struct {
		nodes sets.Set[string]
		want  []string
	}{
		"all nodes":    {nil, everything},
		"one":          {sets.New("node-a"), []string{"a-1", "a-2", "attached", "wide-a", "wide-c", "mixed-c", "mixed-all", "stray"}},
		"two":          {sets.New("node-b", "node-c"), []string{"a-1", "a-2", "b-1", "attached", "wide-a", "wide-c", "mixed-c", "mixed-all", "named", "stray"}},
		"without GPUs": {sets.New("node-z"), []string{"attached", "mixed-c", "mixed-all"}},
	} {
		t.Run(name, func(t *testing.T) {
			called := false
			view.Limited(&corev1.Pod{}, tt.nodes, func() {
				called = true
				if diff := cmp.Diff(tt.want, names()); diff != "" {
					t.Errorf("slices (-want +got):\n%s", diff)
				}
			})
			if !called {
				t.Error("the function was not called")
			}
			if diff := cmp.Diff(everything, names()); diff != "" {
				t.Errorf("slices afterwards (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCandidateSlices_Replaced: slices that were replaced are forgotten in time, and those that replace them are of their own
// nodes, not of those before.
func TestCandidateSlices_Replaced(t *testing.T) {
	view := &CandidateSlices{}
	for round := range 10 {
		nodes := []string{"node-a", "node-b"}
		if round%2 == 1 {
			nodes = []string{"node-b", "node-a"}
		}
		view.SharedDRAManager = listed{slices: []*resourceapi.ResourceSlice{slice("1", nodes[0], nodes[0]), slice("2", nodes[1], nodes[1])}}
		view.Limited(&corev1.Pod{}, sets.New("node-a"), func() {
			got, err := view.ResourceSlices().ListWithDeviceTaintRules()
			if err != nil || len(got) != 1 || *got[0].Spec.NodeName != "node-a" {
				t.Errorf("round %d: got %v and the error %v", round, got, err)
			}
		})
		if n := len(view.index.known); n > 6 {
			t.Errorf("round %d: %d slices are remembered of two", round, n)
		}
	}
}
