// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-scheduler/framework"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

func (b *bed) demand(claim *resourceapi.ResourceClaim) pools.Demand {
	b.t.Helper()
	d, err := pools.NewDemand(fakeClasses{}.Get, &claim.Spec)
	must(b.t, err)
	return d
}

var eight = []string{"n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"}

func TestParseArgs(t *testing.T) {
	whole := Args{
		Candidates: 9, Strategy: packing.Spread, Strategies: map[string]packing.Strategy{"a": packing.Pack}, Drivers: []string{"gpu.nvidia.com"},
	}
	for text, want := range map[string]any{
		``:                  Args{Candidates: 4, Strategy: packing.Pack, Drivers: []string{driver}},
		`{"candidates": 8}`: Args{Candidates: 8, Strategy: packing.Pack, Drivers: []string{driver}},
		`{"candidates": 9, "strategy": "spread", "strategies": {"a": "pack"}, "drivers": ["gpu.nvidia.com"]}`: whole,
		"candidates: 9\nstrategy: spread\nstrategies: {a: pack}\ndrivers: [gpu.nvidia.com]":                   whole,
		`{"candidate": 8}`:                  `unknown field "candidate"`,
		`{"strategies": {"a": "tight"}}`:    `strategies[a]: unknown strategy "tight"`,
		`{"strategy": "tight"}`:             `strategy: unknown strategy "tight"`,
		`{"candidates": 0}`:                 `candidates is 0, want 1 to 1000`,
		`{"candidates": "many"}`:            `cannot unmarshal string`,
		`{"candidates": 1, "Candidates":2}`: `unknown field "Candidates"`,
		`[1]`:                               `cannot unmarshal array`,
	} {
		got, err := parseArgs(&runtime.Unknown{Raw: []byte(text)})
		if message, ok := want.(string); ok {
			if err == nil || !strings.Contains(err.Error(), message) {
				t.Errorf("%s: got %v, want an error with %q", text, err, message)
			}
			continue
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", text, err, diff)
		}
	}
	if _, err := parseArgs(&corev1.Pod{}); err == nil {
		t.Error("arguments of another kind are taken")
	}
	if got, err := parseArgs(nil); err != nil || got.Candidates != 4 {
		t.Errorf("no arguments: %v, %v", got, err)
	}
}

// TestPlugin_Packs places pods one after the other, as Reserve and the API server report them in turn.
func TestPlugin_Packs(t *testing.T) {
	for class, want := range map[string]map[string]int{
		"1g.10gb": {"n1": 56, "n2": 4},
		"gpu":     {"n1": 8, "n2": 8, "n3": 8, "n4": 8, "n5": 8, "n6": 8, "n7": 8, "n8": 4},
		"mps":     {"n1": 60},
	} {
		b := newBed(t, "")
		b.addNodes("hgx-h100", eight...)
		got := map[string]int{}
		for i := range 60 {
			name := fmt.Sprint("pod-", i)
			node, _ := b.place(b.pod(name, class))
			got[node]++
			if i%2 == 0 {
				b.store(name)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("60 of %s (-want +got):\n%s", class, diff)
		}
	}
}

// TestPlugin_FillsBeforeItOpens: partitions go where others are, on however many nodes, before an untouched GPU is opened. Ten
// on each of eight nodes leave room for four on one GPU of each.
func TestPlugin_FillsBeforeItOpens(t *testing.T) {
	b := newBed(t, "")
	b.addNodes("hgx-h100", eight...)
	for _, node := range eight {
		fillNode(b, node, 10)
	}
	got := map[string]int{}
	for i := range 33 {
		node, _ := b.place(b.pod(fmt.Sprint("pod-", i), "1g.10gb"))
		got[node]++
		untouched := 0
		for _, n := range eight {
			untouched += b.plugin.cluster.views[n][0].state.Untouched()
		}
		if want := 48 - i/32; untouched != want {
			t.Fatalf("%d GPUs are untouched after pod %d, want %d: %v", untouched, i, want, got)
		}
	}
	want := map[string]int{"n1": 5, "n2": 4, "n3": 4, "n4": 4, "n5": 4, "n6": 4, "n7": 4, "n8": 4}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("nodes of 33 (-want +got):\n%s", diff)
	}
}

func TestPlugin_Spreads(t *testing.T) {
	byClass := newBed(t, `{"strategies": {"1g.10gb": "spread"}}`)
	byPod := newBed(t, "")
	for _, b := range []*bed{byClass, byPod} {
		b.addNodes("hgx-h100", eight...)
		var got []string
		for i := range 8 {
			pod := b.pod(fmt.Sprint("pod-", i), "1g.10gb")
			if b == byPod {
				pod.Annotations[v1alpha1.PlacementAnnotation] = "spread"
			}
			node, _ := b.place(pod)
			got = append(got, node)
		}
		slices.Sort(got)
		if diff := cmp.Diff(eight, got); diff != "" {
			t.Errorf("nodes of eight replicas (-want +got):\n%s", diff)
		}
	}
}

func TestPreFilter_UnknownPlacement(t *testing.T) {
	b := newBed(t, "")
	b.addNodes("hgx-h100", "n1", "n2")
	pod := b.pod("odd", "gpu")
	pod.Annotations[v1alpha1.PlacementAnnotation] = "tight"
	for range 3 {
		if _, got := b.preFilter(pod); got != "n1 n2" {
			t.Errorf("got %s, want the pod placed by the default strategy", got)
		}
	}
	close(b.recorder.Events)
	var all []string
	for e := range b.recorder.Events {
		all = append(all, e)
	}
	want := []string{`Warning PlacementUnknown Annotation gpu.cleave.dev/placement: unknown strategy "tight": it is one of [pack spread]. ` +
		`The pod is placed by "pack".`}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
}

func TestPreFilter_Narrows(t *testing.T) {
	b := newBed(t, `{"candidates": 3}`)
	b.addNodes("hgx-h100", eight...)
	if _, got := b.preFilter(b.pod("first", "1g.10gb")); got != "n1 n2 n3" {
		t.Errorf("on equal nodes: %s, want three by name", got)
	}
	for i := range 5 {
		b.place(b.pod(fmt.Sprint("pod-", i), "gpu"))
	}
	if _, got := b.preFilter(b.pod("four", "gpu", count(4))); got != "n2 n3 n4" {
		t.Errorf("four GPUs: %s, want nodes with as many", got)
	}
	if _, got := b.preFilter(b.pod("nine", "gpu", count(9))); got != "UnschedulableAndUnresolvable" {
		t.Errorf("nine GPUs: %s, want them refused", got)
	}
}

func count(n int64) func(*resourceapi.ResourceClaimSpec) {
	return func(s *resourceapi.ResourceClaimSpec) { s.Devices.Requests[0].Exactly.Count = n }
}

func TestPreFilter_EligibleNodes(t *testing.T) {
	b := newBed(t, "")
	b.addNodes("hgx-h100", eight...)
	node := func(i int) *fakeNode { return b.nodes[i].(*fakeNode) }
	node(0).node.Spec.Taints = []corev1.Taint{{Key: "upkeep", Effect: corev1.TaintEffectNoExecute}}
	node(1).node.Spec.Unschedulable = true
	node(2).usedCPU = 7500
	node(3).node.Spec.Taints = []corev1.Taint{{Key: "slow", Effect: corev1.TaintEffectPreferNoSchedule}}
	node(4).node.Labels = nil
	pod := b.pod("pod", "gpu")
	pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
	}}}
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "kubernetes.io/hostname", Operator: corev1.NodeSelectorOpExists},
		}}},
	}}}
	if _, got := b.preFilter(pod); got != "n4 n6 n7 n8" {
		t.Errorf("got %s, want nodes without taint, with CPU and label", got)
	}
	pod.Spec.Tolerations = []corev1.Toleration{{Key: "upkeep", Operator: corev1.TolerationOpExists}}
	if _, got := b.preFilter(pod); got != "n1 n4 n6 n7" {
		t.Errorf("with a toleration: %s", got)
	}
}

func TestPreFilter_ExtendedResource(t *testing.T) {
	b := newBed(t, "")
	b.addNodes("hgx-h100", eight...)
	for i := range 6 {
		b.place(b.pod(fmt.Sprint("pod-", i), "gpu"))
	}
	if _, got := b.preFilter(extended("gpu", 2)); got != "n1 n2 n3 n4" {
		t.Errorf("two GPUs: %s", got)
	}
	if _, got := b.preFilter(extended("gpu", 3)); got != "n2 n3 n4 n5" {
		t.Errorf("three GPUs: %s, want nodes with as many", got)
	}
}

// TestPlugin_FallsBack: none of the best nodes would do, so the next attempt sees all, and the one after that is narrowed
// again.
func TestPlugin_FallsBack(t *testing.T) {
	b := newBed(t, `{"candidates": 1}`)
	b.addNodes("hgx-h100", eight...)
	pod := b.pod("pod", "gpu")
	state, got := b.preFilter(pod)
	if got != "n1" {
		t.Fatalf("first attempt: %s", got)
	}
	if _, status := b.plugin.PostFilter(t.Context(), state, pod, nil); !status.IsSuccess() {
		t.Errorf("PostFilter: %v, want Success, so that no pod is evicted", status)
	}
	if diff := cmp.Diff([]string{"default/pod"}, b.activated); diff != "" {
		t.Errorf("activated (-want +got):\n%s", diff)
	}
	state, got = b.preFilter(pod)
	if got != "Skip" || len(read(state).costs) != 8 {
		t.Errorf("second attempt: %s with %v, want all nodes, with scores", got, read(state).costs)
	}
	if _, status := b.plugin.PostFilter(t.Context(), state, pod, nil); status.Code() != framework.Unschedulable {
		t.Errorf("PostFilter of the second attempt: %v", status)
	}
	if _, got = b.preFilter(pod); got != "n1" {
		t.Errorf("third attempt: %s", got)
	}
}

// TestPlugin_FullIsChecked: for pods that find no room by the measure, the allocator is asked now and then, once for all that
// ask for the same.
func TestPlugin_FullIsChecked(t *testing.T) {
	b := newBed(t, "")
	b.addNodes("t4", "n1")
	b.place(b.pod("first", "gpu"))
	var got []string
	for i := range 12 { // two pods that ask for the same, one for something else; another minute
		b.now = b.now.Add(checkGap)
		for _, pod := range []*corev1.Pod{b.pod("a", "gpu"), b.pod("b", "gpu"), b.pod("c", "gpu", count(2))} {
			if _, s := b.preFilter(pod); s == "Skip" {
				got = append(got, fmt.Sprint(i, " ", pod.Name))
			}
		}
	}
	b.now = b.now.Add(checkGap)
	state, s := b.preFilter(b.pod("a", "gpu"))
	if diff := cmp.Diff([]string{"0 a", "1 c"}, got); diff != "" || s != "Skip" {
		t.Errorf("checks (-want +got):\n%s; after a minute: %s", diff, s)
	}
	b.plugin.Reserve(t.Context(), state, b.pod("a", "gpu"), "n1") // there was room
	b.now = b.now.Add(checkGap)
	if _, s := b.preFilter(b.pod("b", "gpu")); s != "Skip" {
		t.Errorf("the allocator found room that the measure did not see, and the next pod is %s", s)
	}
}

// TestPlugin_FullIsCheckedByNodes: a check for a pod that may be on some nodes says nothing of one that may be on others. The first
// comes first each time.
func TestPlugin_FullIsCheckedByNodes(t *testing.T) {
	b := newBed(t, "")
	b.addNodes("t4", "n1", "n2")
	b.place(b.pod("first", "gpu"))
	b.place(b.pod("second", "gpu"))
	on := func(name, node string) *corev1.Pod {
		pod := b.pod(name, "gpu")
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
		return pod
	}
	var got []string
	for i := range 4 {
		b.now = b.now.Add(retryInterval / 2)
		for _, pod := range []*corev1.Pod{on("a", "n1"), on("b", "n2")} {
			if _, s := b.preFilter(pod); s == "Skip" {
				got = append(got, fmt.Sprint(i, " ", pod.Name))
			}
		}
	}
	if diff := cmp.Diff([]string{"0 a", "1 b", "2 a", "3 b"}, got); diff != "" {
		t.Errorf("checks (-want +got):\n%s", diff)
	}
}

// TestPlugin_Unreserve: devices that a pod does not get after all are free again.
func TestPlugin_Unreserve(t *testing.T) {
	b := newBed(t, "")
	b.addNodes("t4", "n1")
	pod := b.pod("first", "gpu")
	_, state := b.place(pod)
	second := b.pod("second", "gpu")
	if _, got := b.preFilter(second); got != "UnschedulableAndUnresolvable" {
		t.Errorf("a GPU that is reserved: %s", got)
	}
	b.plugin.Unreserve(t.Context(), state, pod, "n1")
	b.plugin.Unreserve(t.Context(), state, pod, "n1")
	if _, got := b.preFilter(second); got != "n1" {
		t.Errorf("a GPU that is not reserved anymore: %s", got)
	}
	b.place(second)
	b.store("second")
	b.plugin.Unreserve(t.Context(), state, second, "n1") // too late: the API server has it
	if _, got := b.preFilter(b.pod("third", "gpu")); got != "UnschedulableAndUnresolvable" {
		t.Errorf("a GPU that is allocated: %s", got)
	}
	b.remove("second")
	if _, got := b.preFilter(b.pod("third", "gpu")); got != "n1" {
		t.Errorf("a GPU whose claim is gone: %s", got)
	}
}

func TestPlugin_PoolsChange(t *testing.T) {
	b := newBed(t, "")
	b.addNodes("hgx-h100", "n1", "n2")
	published := slicesOf(t, "hgx-h100", "n1")
	pod := b.pod("pod", "gpu")
	b.withdraw(published[1])
	if _, got := b.preFilter(pod); got != "n2" {
		t.Errorf("n1's pool is not whole: %s", got)
	}
	b.publish(published[1])
	for i := range 2 {
		b.addNode(fmt.Sprint("plain-", i))
	}
	if _, got := b.preFilter(pod); got != "n1 n2" {
		t.Errorf("n1's pool is whole again, and two nodes have none: %s", got)
	}
	rule := &resourceapi.DeviceTaintRule{}
	rule.Name = "upkeep"
	pool := "n1"
	rule.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Pool: &pool}
	rule.Spec.Taint = resourceapi.DeviceTaint{Key: "upkeep", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	b.addRule(rule)
	if _, got := b.preFilter(pod); got != "n2" {
		t.Errorf("n1 is tainted by a rule: %s", got)
	}
	b.removeRule(rule)
	if _, got := b.preFilter(pod); got != "n1 n2" {
		t.Errorf("the rule is gone: %s", got)
	}
	for _, name := range []string{"n1", "n2"} {
		for _, s := range slicesOf(t, "hgx-h100", name) {
			b.withdraw(s)
		}
	}
	if _, got := b.preFilter(pod); got != "Skip" {
		t.Errorf("no node publishes anything: %s", got)
	}
	if c := b.plugin.cluster; len(c.views)+len(c.owners)+len(c.users)+len(c.elsewhere) > 0 {
		t.Errorf("something is left: %v, %v, %v", slices.Collect(maps.Keys(c.views)), c.owners, c.users)
	}
}

func TestSignPod(t *testing.T) {
	b := newBed(t, "")
	if _, status := b.plugin.SignPod(t.Context(), &corev1.Pod{}); !status.IsSuccess() {
		t.Errorf("a pod without claims: %v", status)
	}
	if _, status := b.plugin.SignPod(t.Context(), b.pod("pod", "gpu")); status.IsSuccess() {
		t.Error("a pod with claims is scheduled in a batch")
	}
}
