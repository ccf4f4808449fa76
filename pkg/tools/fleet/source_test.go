// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cleave-dra/cleave/pkg/tools/explain"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

const gpu0 = "gpu-0000-1b-00-0" // of an HGX H100

func uses(s *Snapshot, node string) map[Use]int {
	counts := map[Use]int{}
	for _, n := range s.Nodes {
		for i := range n.GPUs {
			if n.Name == node {
				counts[n.GPUs[i].Use]++
			}
		}
	}
	return counts
}

func TestSource_ClaimsComeAndGo(t *testing.T) {
	client := clusterOf(t, "hgx-h100", []string{"a", "b"}, claimed("ml", "train", "gpu.cleave.dev", "a", gpu0))
	s := running(t, client, Config{})
	first := s.Snapshot()
	if diff := cmp.Diff(map[Use]int{Whole: 1, Unused: 7}, uses(first, "a")); diff != "" {
		t.Errorf("node a (-want +got):\n%s", diff)
	}
	if bar := first.Nodes[0].GPUs[0].Bars[0]; bar.Claim != "ml/train" || bar.Units != 8 || bar.Namespace() != "ml" {
		t.Errorf("got bar %+v", bar)
	}
	claims := client.ResourceV1().ResourceClaims("dev")
	if _, err := claims.Create(t.Context(), claimed("dev", "small", "gpu.cleave.dev", "b", gpu0+"-mig-19-0"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	second := until(t, s, func(s *Snapshot) bool { return s.Totals.Partitioned == 1 })
	if second.Nodes[0] != first.Nodes[0] || second.Nodes[1].Version != second.Version || second.Claims[1] != first.Claims[0] {
		t.Error("more has changed than node b and the new claim")
	}
	if c := second.Claims[0]; c.Key() != "dev/small" || c.Devices[0].Node != "b" || !slices.Equal(c.Pods, []string{"small-pod"}) {
		t.Errorf("got claim %+v", c)
	}
	if err := claims.Delete(t.Context(), "small", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	last := until(t, s, func(s *Snapshot) bool { return s.Totals.Partitioned == 0 })
	if len(last.Claims) != 1 || last.Totals.GPUs != 16 || last.Totals.Unused != 15 {
		t.Errorf("got %+v", last.Totals)
	}
}

func TestSource_PendingClaims(t *testing.T) {
	client := clusterOf(t, "l40s", []string{"a"},
		claimed("dev", "waits", "gpu.cleave.dev", ""), claimed("dev", "nic", "nic.example.com", ""), claimed("dev", "typo", "gpu.cleav.dev", ""),
		claimed("dev", "other-gpu", "gpu.cleave.dev", "a", "gpu-unknown"))
	s := running(t, client, Config{})
	var got []string
	for _, c := range s.Snapshot().Claims {
		got = append(got, fmt.Sprintf("%s %v", c.Name, c.Allocated))
	}
	if diff := cmp.Diff([]string{"other-gpu true", "typo false", "waits false"}, got); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	if problems := s.Snapshot().Nodes[0].Problems; len(problems) != 1 || !strings.Contains(problems[0], "gpu-unknown") {
		t.Errorf("got problems %q", problems)
	}
}

func TestSource_NodesAndRules(t *testing.T) {
	client := clusterOf(t, "hgx-h100", []string{"a", "b"})
	s := running(t, client, Config{})
	first := s.Snapshot()
	cordoned := machineOf("a")
	cordoned.Spec.Unschedulable = true
	cordoned.ResourceVersion = "99"
	if _, err := client.CoreV1().Nodes().Update(t.Context(), cordoned, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, s, func(s *Snapshot) bool { return s.Nodes[0].State == inspect.NodeCordoned })
	pool, device := "b", gpu0
	rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "rma"}, Spec: resourceapi.DeviceTaintRuleSpec{
		DeviceSelector: &resourceapi.DeviceTaintSelector{Pool: &pool, Device: &device},
		Taint:          resourceapi.DeviceTaint{Key: "example.com/rma", Effect: resourceapi.DeviceTaintEffectNoSchedule},
	}}
	if _, err := client.ResourceV1().DeviceTaintRules().Create(t.Context(), rule, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	tainted := until(t, s, func(s *Snapshot) bool { return s.Totals.Tainted == 1 })
	if g := tainted.Nodes[1].GPUs[0]; g.Device != gpu0 || len(g.Taints) != 1 || g.Taints[0].Key != "example.com/rma" {
		t.Errorf("got %+v", g)
	}
	if err := client.CoreV1().Nodes().Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, s, func(s *Snapshot) bool { return s.Nodes[1].State == inspect.NodeUnknown })
	if first.Nodes[1].State != "" {
		t.Error("a snapshot has changed")
	}
}

// A node that takes no pods has nothing free; cordoned, it has no problem.
func TestSource_NodesWithoutPods(t *testing.T) {
	cordoned, silent := machineOf("a"), machineOf("b")
	cordoned.Spec.Unschedulable = true
	silent.Status.Conditions[0].Status = corev1.ConditionUnknown
	silent.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule},
		{Key: "example.com/old", Effect: corev1.TaintEffectPreferNoSchedule}}
	client := clusterOf(t, "l40s", []string{"a", "b", "c", "d"}, claimed("ml", "train", "gpu.cleave.dev", "a", "gpu-0000-4a-00-0"))
	for _, n := range []*corev1.Node{cordoned, silent} {
		if _, err := client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.CoreV1().Nodes().Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	got := running(t, client, Config{}).Snapshot()
	var states []string
	for _, n := range got.Nodes {
		states = append(states, fmt.Sprintf("%s %q %v: %d kinds, problem: %t", n.Name, n.State, n.Taints, len(n.Free), n.HasProblem()))
	}
	if diff := cmp.Diff([]string{`a "cordoned" []: 0 kinds, problem: false`, `b "not ready" [node.kubernetes.io/unreachable:NoSchedule]: 0 kinds, problem: true`,
		`c "no Node object" []: 0 kinds, problem: true`, `d "" []: 3 kinds, problem: false`}, states); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	want := Totals{Nodes: 4, GPUs: 16, Unused: 4, Whole: 1, Closed: 11, Problems: 2, Allocated: 1, Free: got.Nodes[3].Free}
	if diff := cmp.Diff(want, got.Totals); diff != "" {
		t.Errorf("totals (-want +got):\n%s", diff)
	}
}

// What is deleted while everything is read again does not stay.
func TestSource_ClaimDeletedWithAllDirty(t *testing.T) {
	client := clusterOf(t, "l40s", []string{"a"}, claimed("dev", "waits", "gpu.cleave.dev", ""), claimed("dev", "stays", "gpu.cleave.dev", ""))
	s := running(t, client, Config{})
	deleted, err := s.Claim("dev/waits")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.watches.claims.GetStore().Delete(deleted); err != nil {
		t.Fatal(err)
	}
	s.mark(func(d *dirty) { d.all, d.claims["dev/waits"] = true, true })
	got := until(t, s, func(s *Snapshot) bool { return s.Version > 1 })
	if len(got.Claims) != 1 || got.Totals.Pending != 1 {
		t.Errorf("got %d claims, %+v", len(got.Claims), got.Totals)
	}
}

// Taints that close nothing are no alarm.
func TestSource_TaintWithoutEffect(t *testing.T) {
	rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "dry-run"}, Spec: resourceapi.DeviceTaintRuleSpec{
		DeviceSelector: &resourceapi.DeviceTaintSelector{},
		Taint:          resourceapi.DeviceTaint{Key: "example.com/rma", Effect: resourceapi.DeviceTaintEffectNone},
	}}
	got := running(t, clusterOf(t, "l40s", []string{"a"}, rule), Config{}).Snapshot().Totals
	if got.Tainted != 0 || got.Unused != 4 {
		t.Errorf("got %+v", got)
	}
}

// Of a pool that the scheduler refuses, nothing is free.
func TestSource_InvalidPool(t *testing.T) {
	client := clusterOf(t, "l40s", []string{"a"})
	for _, s := range slicesOf(t, "l40s", "a") {
		if len(s.Spec.Devices) < 2 {
			continue
		}
		s.Spec.Devices[0].Name = s.Spec.Devices[1].Name
		if _, err := client.ResourceV1().ResourceSlices().Update(t.Context(), &s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	got := running(t, client, Config{}).Snapshot()
	if got.Totals.GPUs == 0 || got.Totals.Closed != got.Totals.GPUs || len(got.Totals.Free) > 0 || !got.Nodes[0].HasProblem() {
		t.Errorf("got %+v, problems %q", got.Totals, got.Nodes[0].Problems)
	}
}

func TestSource_PoolIncomplete(t *testing.T) {
	client := clusterOf(t, "hgx-h100", []string{"a"}, claimed("ml", "train", "gpu.cleave.dev", "a", gpu0))
	s := running(t, client, Config{})
	all := slicesOf(t, "hgx-h100", "a")
	slices := client.ResourceV1().ResourceSlices()
	if err := slices.Delete(t.Context(), all[1].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	cut := until(t, s, func(s *Snapshot) bool { return s.Totals.Problems == 1 })
	if n := cut.Nodes[0]; !strings.Contains(n.Problems[0], "incomplete") || len(n.GPUs) != 8 || len(n.Free) != 0 {
		t.Errorf("got %+v", n)
	}
	for i := range all {
		if err := slices.Delete(t.Context(), all[i].Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	until(t, s, func(s *Snapshot) bool { return len(s.Nodes) == 0 })
	if _, err := s.View("a"); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v, want ErrUnknown", err)
	}
}

// forbid answers lists of a resource as the API server answers those who may not.
func forbid(client *fake.Clientset, resource string) {
	client.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(resourceapi.Resource(resource), "", errors.New("no"))
	})
}

func TestNewSource_Forbidden(t *testing.T) {
	for _, resource := range []string{"nodes", "devicetaintrules", "deviceclasses"} {
		client := clusterOf(t, "l40s", []string{"a"})
		forbid(client, resource)
		if got := running(t, client, Config{}).Snapshot(); len(got.Notices) != 1 || !strings.Contains(got.Notices[0], "forbidden") || got.Totals.GPUs != 4 {
			t.Errorf("without %s: %d GPUs, notices %q", resource, got.Totals.GPUs, got.Notices)
		}
	}
	for _, resource := range []string{"resourceslices", "resourceclaims"} {
		client := clusterOf(t, "l40s", []string{"a"})
		forbid(client, resource)
		if _, err := NewSource(t.Context(), Config{Client: client, Driver: testDriver}); !apierrors.IsForbidden(err) {
			t.Errorf("without %s: %v", resource, err)
		}
	}
}

// An API server that is busy is no missing right: what it would show is not left out for good.
func TestNewSource_Busy(t *testing.T) {
	for _, resource := range []string{"nodes", "devicetaintrules", "deviceclasses"} {
		client := clusterOf(t, "l40s", []string{"a"})
		client.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewTooManyRequests("later", 1)
		})
		if _, err := NewSource(t.Context(), Config{Client: client, Driver: testDriver}); !apierrors.IsTooManyRequests(err) {
			t.Errorf("%s: got %v, want an error", resource, err)
		}
	}
}

func TestSource_APIServerSilent(t *testing.T) {
	s := running(t, clusterOf(t, "l40s", []string{"a"}), Config{})
	s.answered(t.Context(), nil, errors.New("connection refused"))
	until(t, s, func(s *Snapshot) bool {
		return len(s.Notices) == 1 && strings.Contains(s.Notices[0], "connection refused")
	})
	s.answered(t.Context(), &apiversion.Info{}, nil)
	until(t, s, func(s *Snapshot) bool { return len(s.Notices) == 0 })
}

func TestPack_RoundTrip(t *testing.T) {
	for _, want := range slicesOf(t, "gb200-nvl72", "a") {
		object, err := pack(&want)
		if err != nil {
			t.Fatal(err)
		}
		again, err := pack(object)
		if err != nil || again != object {
			t.Errorf("packed twice: %v", err)
		}
		got, err := object.(*packedSlice).unpack()
		if err != nil {
			t.Fatal(err)
		}
		// Quantities keep how they were written; that of protobuf is their canonical form.
		if diff := cmp.Diff(want.Spec, got.Spec, cmp.Comparer(func(a, b resourceapi.DeviceCapacity) bool { return a.Value.Cmp(b.Value) == 0 }),
			cmp.Comparer(func(a, b resourceapi.Counter) bool { return a.Value.Cmp(b.Value) == 0 })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", want.Name, diff)
		}
	}
	broken := &packedSlice{data: []byte("no")}
	if _, err := broken.unpack(); err == nil {
		t.Error("a broken slice was read")
	}
}

func TestSource_EndsBeforeSync(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s, err := NewSource(ctx, Config{Client: clusterOf(t, "l40s", []string{"a"}), Driver: testDriver})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	s.Run(ctx) // returns
}

func TestSource_Explain(t *testing.T) {
	client := clusterOf(t, "l40s", []string{"a"}, claimed("dev", "typo", "gpu.cleav.dev", ""), claimed("dev", "fits", "gpu.cleave.dev", ""))
	s := running(t, client, Config{})
	got, err := s.Explain(t.Context(), []string{"dev/typo", "dev/gone", "dev/fits", "dev/fits"})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got["dev/typo"].State != explain.Refused || got["dev/typo"].Causes[0].Kind != explain.ClassMissing {
		t.Errorf("got %+v", got)
	}
	if e := got["dev/fits"]; e == nil || e.State != explain.Fits {
		t.Errorf("got %+v, want a claim that fits", e)
	}
}

// The allocator is that of the cluster's release: before 1.36 the scheduler ignores the taints of devices, and before 1.36 or without
// their feature gates counters, which the API server then drops, too.
func TestSource_ExplainByRelease(t *testing.T) {
	for name, tt := range map[string]struct {
		release  string
		tainted  bool
		counters bool
		want     explain.State
		says     string // of the scheduler, and of what the cluster does not count
	}{
		"not known":            {"", true, true, explain.Refused, ""},
		"no release":           {"main", true, true, explain.Refused, ""},
		"taints":               {"v1.37.2", true, true, explain.Refused, ""},
		"taints ignored":       {"v1.35.4-eks-1", true, true, explain.Fits, "The scheduler of Kubernetes 1.35.4 ignores"},
		"counters kept":        {"v1.35.4", false, true, explain.Fits, "The scheduler of Kubernetes 1.35.4 ignores"},
		"counters not kept":    {"v1.35.4", false, false, explain.Fits, ""},
		"counters, by default": {"v1.36.2", false, true, explain.Fits, ""},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(classOf("gpu.cleave.dev", testDriver), machineOf("a"), claimed("dev", "waits", "gpu.cleave.dev", ""))
			for _, slice := range slicesOf(t, "hgx-h100", "a") {
				for i := range slice.Spec.Devices {
					d := &slice.Spec.Devices[i]
					if !tt.counters {
						d.ConsumesCounters = nil
					}
					if tt.tainted {
						d.Taints = []resourceapi.DeviceTaint{{Key: "example.com/rma", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
					}
				}
				if !tt.counters {
					slice.Spec.SharedCounters = nil
				}
				if _, err := client.ResourceV1().ResourceSlices().Create(t.Context(), &slice, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			s := running(t, client, Config{})
			s.answered(t.Context(), &apiversion.Info{GitVersion: tt.release}, nil)
			got, err := s.Explain(t.Context(), []string{"dev/waits"})
			if err != nil {
				t.Fatal(err)
			}
			if e := got["dev/waits"]; e == nil || e.State != tt.want || strings.Contains(fmt.Sprint(e.Notes), "ignores") != (tt.says != "") ||
				!strings.Contains(fmt.Sprint(e.Notes), tt.says) {
				t.Errorf("got %+v, want %s and %q", e, tt.want, tt.says)
			}
		})
	}
}
