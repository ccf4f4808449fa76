// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiversion "k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
)

// everyTier is the policy of a node without any.
var everyTier = &v1alpha1.NodePolicy{}

// slicesOf are the slices that a node of a model publishes under a policy.
func slicesOf(t *testing.T, model, driver, node string, rules *v1alpha1.NodePolicy) []runtime.Object {
	t.Helper()
	gpus, err := models.Load(model)
	if err != nil {
		t.Fatal(err)
	}
	list := nodeslices.Objects(policy.Apply(rules, gpus, policy.Capabilities{}), driver, node)
	var objects []runtime.Object
	for i := range list.Items {
		objects = append(objects, &list.Items[i])
	}
	return objects
}

func claimOn(name, driver, node, device string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name}}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: driver, Pool: node, Device: device}},
	}}
	return c
}

// cluster has two nodes of Cleave, one of another driver, and one without GPUs.
func cluster(t *testing.T, more ...runtime.Object) *fake.Clientset {
	t.Helper()
	objects := slices.Concat(
		slicesOf(t, "l40s", "gpu.cleave.dev", "node-1", everyTier), slicesOf(t, "t4", "gpu.cleave.dev", "node-2", everyTier),
		slicesOf(t, "t4", "gpu.example.com", "node-3", everyTier), more,
		[]runtime.Object{
			claimOn("train", "gpu.cleave.dev", "node-1", "gpu-0000-4a-00-0"),
			claimOn("elsewhere", "gpu.cleave.dev", "node-2", "gpu-0000-00-1e-0"),
			claimOn("others", "gpu.example.com", "node-3", "gpu-0000-00-1e-0"),
			&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "pending"}},
		})
	for _, name := range []string{"node-1", "node-2", "node-3", "node-4"} {
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	client := fake.NewClientset(objects...)
	client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &apiversion.Info{GitVersion: "v1.37.2"}
	return client
}

func TestViewNode(t *testing.T) {
	rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "rma"}, Spec: resourceapi.DeviceTaintRuleSpec{
		DeviceSelector: &resourceapi.DeviceTaintSelector{Device: new("gpu-0000-61-00-0")},
		Taint:          resourceapi.DeviceTaint{Key: "example.com/rma", Effect: resourceapi.DeviceTaintEffectNoSchedule},
	}}
	v, err := viewNode(t.Context(), cluster(t, rule), "node-1", "gpu.cleave.dev")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, g := range v.GPUs {
		for _, s := range g.Shapes {
			line := s.Device + " " + string(s.State)
			for _, h := range s.Claims {
				line += " " + h.Claim
			}
			if s.Type == "gpu" {
				got = append(got, line)
			}
		}
	}
	want := []string{"gpu-0000-4a-00-0 held ml/train", "gpu-0000-61-00-0 tainted", "gpu-0000-ca-00-0 free", "gpu-0000-e1-00-0 free"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("whole GPUs (-want +got):\n%s", diff)
	}
	if len(v.Problems) > 0 {
		t.Errorf("problems: %q", v.Problems)
	}
}

// TestView_NotCounted: feature gates are the same for all nodes, and nothing else says why a GPU offers less than its policy.
func TestView_NotCounted(t *testing.T) {
	client := cluster(t)
	client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &apiversion.Info{GitVersion: "v1.36.1"}
	view, err := viewNode(t.Context(), client, "node-1", "gpu.cleave.dev")
	if err != nil || !strings.Contains(strings.Join(view.Problems, "\n"), "use 1.36.2 or later") {
		t.Errorf("node: problems %q, error %v", view.Problems, err)
	}
	fleet, err := viewFleet(t.Context(), client, "gpu.cleave.dev")
	if err != nil || !strings.Contains(strings.Join(fleet.Problems, "\n"), "use 1.36.2 or later") {
		t.Errorf("overview: problems %q, error %v", fleet.Problems, err)
	}
}

func TestViewNode_FieldSelectors(t *testing.T) {
	client := cluster(t)
	if _, err := viewNode(t.Context(), client, "node-1", "gpu.cleave.dev"); err != nil {
		t.Fatal(err)
	}
	for _, a := range client.Actions() {
		if list, ok := a.(clienttesting.ListAction); ok && a.GetResource().Resource == "resourceslices" {
			if got, want := list.GetListRestrictions().Fields.String(), "spec.driver=gpu.cleave.dev,spec.nodeName=node-1"; got != want {
				t.Errorf("slices listed with %q, want %q", got, want)
			}
		}
		create, ok := a.(clienttesting.CreateActionImpl)
		dryRun := ok && len(create.GetCreateOptions().DryRun) > 0
		if !slices.Contains([]string{"get", "list"}, a.GetVerb()) && a.GetResource().Resource != "version" && !dryRun {
			t.Errorf("%s of %s: inspect changes nothing", a.GetVerb(), a.GetResource().Resource)
		}
	}
}

// Nothing of a node is free that takes no pods, as the overview has it.
func TestViewNode_State(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*corev1.Node)
		get    error
		want   string
	}{
		"cordoned": {func(n *corev1.Node) { n.Spec.Unschedulable = true }, nil, "claims get nothing of this node, whatever is free: cordoned"},
		"not ready": {func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		}, nil, "claims get nothing of this node, whatever is free: not ready"},
		"deleted":   {nil, apierrors.NewNotFound(corev1.Resource("nodes"), "node-1"), "claims get nothing of this node, whatever is free: no Node object"},
		"not known": {nil, errors.New("nodes is forbidden"), "whether the node accepts pods is not known: nodes is forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			client := cluster(t)
			client.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
				n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
				if tt.change != nil {
					tt.change(n)
				}
				return true, n, tt.get
			})
			v, err := viewNode(t.Context(), client, "node-1", "gpu.cleave.dev")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{tt.want}, v.Problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestViewNode_Hints(t *testing.T) {
	incomplete := slicesOf(t, "l40s", "gpu.cleave.dev", "node-5", everyTier)[1:]
	tests := map[string]struct {
		node, driver string
		want         []string
	}{
		"without slices": {"node-4", "gpu.cleave.dev",
			[]string{"node-4 has no ResourceSlices of driver gpu.cleave.dev", "the plugin does not run there", "node-1, node-2, node-5"}},
		"unknown":           {"node-9", "gpu.cleave.dev", []string{"the cluster has no node of this name", "node-1, node-2, node-5"}},
		"of another driver": {"node-3", "gpu.cleave.dev", []string{"the node has slices of gpu.example.com (--driver-name)", "node-1, node-2"}},
		"unknown driver": {"node-1", "gpu.nvidia.com",
			[]string{"the node has slices of gpu.cleave.dev (--driver-name)", "no node has slices of gpu.nvidia.com"}},
		"incomplete": {"node-5", "gpu.cleave.dev", []string{"pool node-5 is incomplete: it has 2 of 3 slices", "try again"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := viewNode(t.Context(), cluster(t, incomplete...), tt.node, tt.driver)
			if err == nil {
				t.Fatal("got no error")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

func refusing(t *testing.T, resource string, err error) *fake.Clientset {
	t.Helper()
	client := cluster(t)
	client.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
	return client
}

func TestViewNode_Forbidden(t *testing.T) {
	forbidden := func(resource string) error {
		return apierrors.NewForbidden(schema.GroupResource{Group: "resource.k8s.io", Resource: resource}, "", errors.New("no role allows it"))
	}
	for _, resource := range []string{"resourceslices", "resourceclaims"} {
		_, err := viewNode(t.Context(), refusing(t, resource, forbidden(resource)), "node-1", "gpu.cleave.dev")
		if !apierrors.IsForbidden(errors.Unwrap(err)) || !strings.Contains(err.Error(), resource) {
			t.Errorf("%s: got the error %v", resource, err)
		}
	}
	v, err := viewNode(t.Context(), refusing(t, "devicetaintrules", forbidden("devicetaintrules")), "node-1", "gpu.cleave.dev")
	if err != nil || len(v.GPUs) != 4 || len(v.Problems) != 1 || !strings.Contains(v.Problems[0], "DeviceTaintRules are not shown") {
		t.Errorf("without DeviceTaintRules: got %+v, %v, want four GPUs and a problem", v, err)
	}
	// Kubernetes 1.36 has them in another version of the API.
	v, err = viewNode(t.Context(), refusing(t, "devicetaintrules", apierrors.NewNotFound(schema.GroupResource{}, "")), "node-1",
		"gpu.cleave.dev")
	if err != nil || len(v.GPUs) != 4 || len(v.Problems) != 0 {
		t.Errorf("without the API of DeviceTaintRules: got %+v, %v, want four GPUs and no problem", v, err)
	}
}

func TestViewNode_Paging(t *testing.T) {
	client := cluster(t)
	pages := 0
	client.PrependReactor("list", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		pages++
		list := &resourceapi.ResourceClaimList{}
		if pages == 1 {
			list.Continue = "more"
			return true, list, nil
		}
		list.Items = []resourceapi.ResourceClaim{*claimOn("late", "gpu.cleave.dev", "node-1", "gpu-0000-e1-00-0")}
		return true, list, nil
	})
	v, err := viewNode(t.Context(), client, "node-1", "gpu.cleave.dev")
	if err != nil || pages != 2 {
		t.Fatalf("got %d pages, %v, want 2", pages, err)
	}
	if s := v.GPUs[3].Shapes[0]; len(s.Claims) != 1 || s.Claims[0].Claim != "ml/late" {
		t.Errorf("%s is allocated to %v, want ml/late of the second page", s.Device, s.Claims)
	}
}

func TestClusterClient_MissingKubeconfig(t *testing.T) {
	got := cleave(t, "inspect", "--from-cluster", "node-1", "--kubeconfig", t.TempDir()+"/none")
	if got.code != cli.ExitFailed || !strings.Contains(got.stderr, "--kubeconfig") || !strings.Contains(got.stderr, "/none") {
		t.Errorf("got code %d, stderr %q", got.code, got.stderr)
	}
}

func TestViewFleet(t *testing.T) {
	f, err := viewFleet(t.Context(), cluster(t), "gpu.cleave.dev")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]int{}
	for _, n := range append(f.Nodes, inspect.FleetNode{Summary: f.Totals}) {
		got[n.Node] = []int{n.GPUs, n.Free, n.Whole}
	}
	if diff := cmp.Diff(map[string][]int{"node-1": {4, 3, 1}, "node-2": {1, 0, 1}, "": {5, 3, 2}}, got); diff != "" {
		t.Errorf("GPUs, free and whole (-want +got):\n%s", diff)
	}
}

func TestInspect_NodeOfCluster(t *testing.T) {
	for args, want := range map[string]string{
		"inspect --from-cluster":                 allNodes,
		"inspect --from-cluster n":               "n",
		"inspect --from-cluster=n":               "n",
		"inspect --from-cluster -o json n":       "n",
		"inspect":                                "",
		"kubectl-cleave inspect":                 allNodes,
		"kubectl-cleave inspect n":               "n",
		"kubectl-cleave inspect --node-model=t4": "",
	} {
		program, f := "cleave", &inspectFlags{}
		words := strings.Fields(args)
		if words[0] == "kubectl-cleave" {
			program, words = words[0], words[1:]
		}
		root := New(program)
		cmd := newInspectCommand(f)
		root.AddCommand(cmd)
		if err := cmd.ParseFlags(words[1:]); err != nil {
			t.Fatal(err)
		}
		if err := f.nodes(cmd, cmd.Flags().Args()); err != nil || f.fromCluster != want {
			t.Errorf("%s: got %q, %v; want %q", args, f.fromCluster, err, want)
		}
	}
}
