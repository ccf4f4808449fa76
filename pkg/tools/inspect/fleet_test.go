// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// moved is a pool on a node of another name.
func moved(p Pool, node string) []resourceapi.ResourceSlice {
	var all []resourceapi.ResourceSlice
	for _, s := range p.Slices {
		s := *s.DeepCopy()
		s.Name, s.Spec.NodeName, s.Spec.Pool.Name = strings.ReplaceAll(s.Name, testNode, node), &node, node
		all = append(all, s)
	}
	return all
}

// packed measures packing as the commands do.
func packed() Packer {
	cache := pools.NewCache()
	return func(p Pool) (*packing.State, error) { return cache.State(p.Slices, p.Claims, p.Rules) }
}

func TestOfFleet(t *testing.T) {
	m := newMachine(t, "hgx-h100")
	busy, idle := busyPool(t, m), newMachine(t, "l40s").published()
	sick := moved(idle, "gpu-3")
	for i := range sick {
		for j := range sick[i].Spec.Devices {
			sick[i].Spec.Devices[j].Taints = []resourceapi.DeviceTaint{{Key: nodeslices.TaintUnhealthy, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		}
	}
	set := NewSliceSet()
	for _, s := range slices.Concat(busy.Slices, moved(idle, "gpu-5"), sick, moved(idle, "gpu-4")[1:], moved(idle, "gpu-6"), moved(idle, "gpu-7")) {
		if err := set.AddForOverview(&s); err != nil {
			t.Fatal(err)
		}
	}
	states := map[string]string{testNode: "", "gpu-3": "", "gpu-4": "", "gpu-5": "", "gpu-6": NodeCordoned} // gpu-7 is deleted
	f := OfFleet(testDriver, set, busy.Claims, busy.Rules, states, packed())
	var out bytes.Buffer
	if err := f.Print(&out, Options{}); err != nil {
		t.Fatal(err)
	}
	checkGolden(t, "fleet.txt", out.String())
	out.Reset()
	if err := f.Print(&out, Options{Wide: true}); err != nil {
		t.Fatal(err)
	}
	checkGolden(t, "fleet-wide.txt", out.String())
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	checkGolden(t, "fleet.json", string(data)+"\n")
	if err := OfFleet(testDriver, NewSliceSet(), nil, nil, nil, packed()).Print(&out, Options{}); err == nil || !strings.HasPrefix(err.Error(), "no node has ResourceSlices") {
		t.Errorf("without slices: got %v", err)
	}
}

// Of a pool that the scheduler refuses, nothing is free.
func TestOfFleet_InvalidPool(t *testing.T) {
	m := newMachine(t, "l40s")
	p := m.published()
	device(t, &p, m.gpu(0).PCI.DeviceName()).Name = m.gpu(1).PCI.DeviceName()
	p.Claims = []resourceapi.ResourceClaim{allocated("ml/train", results{result(m.gpu(2).PCI.DeviceName())})}
	set := NewSliceSet()
	for i := range p.Slices {
		if err := set.AddForOverview(&p.Slices[i]); err != nil {
			t.Fatal(err)
		}
	}
	n := OfFleet(testDriver, set, p.Claims, nil, nil, packed()).Nodes[0]
	if diff := cmp.Diff(Summary{GPUs: 4, Whole: 1, Closed: 3, Fits: []Amount{}}, n.Summary); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(n.Problems) == 0 || !strings.HasSuffix(n.Problems[0], "is published twice: the scheduler allocates nothing from the pool") {
		t.Errorf("problems %q", n.Problems)
	}
	nothingFree(t, p)
}

// nothingFree checks that a node's view shows nothing free.
func nothingFree(t *testing.T, p Pool) {
	t.Helper()
	view, err := OfPool(p)
	if err != nil {
		t.Fatal(err)
	}
	for i := range view.GPUs {
		if g := &view.GPUs[i]; g.FreeText() != "nothing" {
			t.Errorf("%s: free %q", g.Name, g.FreeText())
		}
	}
}

// Where more of a GPU is allocated than there is, the node says so, and nothing of it is free.
func TestOfPool_Overdrawn(t *testing.T) {
	m := newMachine(t, "hgx-h100")
	p, name := m.published(), m.gpu(0).PCI.DeviceName()
	for _, of := range []string{name, name + "-mig-19-6"} {
		p.Claims = append(p.Claims, allocated("ml/"+of, results{result(of)}))
	}
	view, err := OfPool(p)
	if err != nil {
		t.Fatal(err)
	}
	if len(view.Problems) != 1 || !strings.HasPrefix(view.Problems[0], "more of "+name+" is allocated than there is: ") {
		t.Errorf("problems %q", view.Problems)
	}
	nothingFree(t, p)
	set := NewSliceSet()
	for i := range p.Slices {
		if err := set.AddForOverview(&p.Slices[i]); err != nil {
			t.Fatal(err)
		}
	}
	n := OfFleet(testDriver, set, p.Claims, nil, nil, packed()).Nodes[0]
	if diff := cmp.Diff(Summary{GPUs: 8, Partitioned: 1, Closed: 7, Fits: []Amount{}}, n.Summary); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNodeState(t *testing.T) {
	condition := func(status corev1.ConditionStatus) corev1.NodeStatus {
		return corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}}
	}
	cordoned := corev1.NodeSpec{Unschedulable: true}
	for _, tt := range []struct {
		node corev1.Node
		want string
	}{
		{corev1.Node{}, ""}, {corev1.Node{Status: condition(corev1.ConditionTrue)}, ""},
		{corev1.Node{Status: condition(corev1.ConditionUnknown)}, NodeNotReady}, {corev1.Node{Spec: cordoned, Status: condition(corev1.ConditionFalse)}, NodeNotReady},
		{corev1.Node{Spec: cordoned, Status: condition(corev1.ConditionTrue)}, NodeCordoned},
	} {
		if got := NodeState(&tt.node); got != tt.want {
			t.Errorf("%+v: got %q, want %q", tt.node, got, tt.want)
		}
	}
}

// A set keeps devices of equal slices once, and slices as they were.
func TestSliceSet(t *testing.T) {
	p := newMachine(t, "l40s").published()
	needed := resourcepool.NewAttributes()
	for i := range p.Slices {
		for _, d := range p.Slices[i].Spec.Devices {
			for name := range d.Attributes {
				needed.Add(resourcepool.Identifier(name))
			}
		}
	}
	set := resourcepool.NewSliceSet(needed)
	var contents []int
	for _, s := range slices.Concat(p.Slices, moved(p, "gpu-2")) {
		kept, err := set.Add(&s)
		if err != nil {
			t.Fatal(err)
		}
		contents = append(contents, set.Content(kept))
	}
	if diff := cmp.Diff([]int{0, 1, 2, 0, 1, 2}, contents); diff != "" {
		t.Errorf("contents (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{testNode, "gpu-2"}, set.Nodes()); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	for i, s := range moved(p, "gpu-2") {
		if diff := cmp.Diff(s.Spec, set.Of("gpu-2")[i].Spec); diff != "" {
			t.Errorf("slice %d (-added +kept):\n%s", i, diff)
		}
	}
}

func TestShape_Room(t *testing.T) {
	tests := map[string]struct {
		used *Amounts
		want int64
	}{
		"nothing used":                {nil, 10},
		"by default":                  {&Amounts{3, 24, 30}, 7},
		"by cores":                    {&Amounts{1, 8, 75}, 2},
		"by memory":                   {&Amounts{1, 60, 10}, 2},
		"only less than the default":  {&Amounts{1, 8, 95}, 1},
		"less than the minimum":       {&Amounts{1, 8, 100}, 0},
		"by shares":                   {&Amounts{10, 10, 10}, 0},
		"more than there is":          {&Amounts{11, 90, 110}, 0},
		"memory below the minimum":    {&Amounts{2, 80, 20}, 0},
		"a claim with nothing at all": {&Amounts{}, 10},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := &Shape{Total: &Amounts{10, 80, 100}, Used: tt.used, least: Amounts{1, 1, 1}, usual: Amounts{1, 8, 10}}
			if got := s.room(); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}
