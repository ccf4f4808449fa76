// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/cel-go/common/types"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/apis/cel"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/nodelabels"
)

// pluginUser is the plugin's in the policy of these tests.
const pluginUser = "system:serviceaccount:cleave-system:cleave-plugin"

// nodeLabelsPolicy is the chart's policy for labels of Nodes, which the manifests lack, as the values nodeLabels and pauseClients are off:
// with own for labels that describe GPUs, with a list of labels of clients in JSON.
func nodeLabelsPolicy(t *testing.T, own bool, clients string) (policy claimPolicy, document string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "deployments", "helm", "cleave", "templates", "admission-node.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, document, found := strings.Cut(string(data), "# Of Node objects, the plugin writes the labels")
	if !found {
		t.Fatal("the chart has no policy for labels of Nodes")
	}
	_, document, _ = strings.Cut(document, "\n")
	document, _, _ = strings.Cut(document, "\n---\n")
	document = strings.ReplaceAll(document, "{{ $user }}", pluginUser)
	document = strings.ReplaceAll(document, "{{ $labels }}", "cleave-node-labels")
	document = strings.ReplaceAll(document, `{{ ne .Values.nodeLabels "none" }}`, strconv.FormatBool(own))
	document = strings.ReplaceAll(document, "{{ toJson .Values.pauseClients }}", clients)
	document = regexp.MustCompile(`(?m)^  labels:\n.*include "cleave.labels".*\n`).ReplaceAllString(document, "")
	return compiled(t, document), document
}

// The policy has the labels of the plugin, and no others.
func TestNodeLabelsPolicy_Keys(t *testing.T) {
	_, document := nodeLabelsPolicy(t, true, "[]")
	for _, key := range nodelabels.Keys() {
		if !strings.Contains(document, fmt.Sprintf("%q", strings.TrimPrefix(key, "nvidia.com/"))) {
			t.Errorf("the policy lacks %s", key)
		}
	}
	names := regexp.MustCompile(`"(cuda|gpu|mig)\.[a-z.-]+"`).FindAllString(document, -1)
	if len(names) != len(nodelabels.Keys()) {
		t.Errorf("the policy has %d labels, and the plugin %d: %q", len(names), len(nodelabels.Keys()), names)
	}
}

func TestNodeLabelsPolicy(t *testing.T) {
	policy, _ := nodeLabelsPolicy(t, true, "[]")
	node := func(name string, change func(n *corev1.Node)) *corev1.Node {
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": "a", "nvidia.com/gpu.count": "2", "nvidia.com/gpu.deploy.driver": "true"},
				Annotations: map[string]string{"a": "b"}},
			Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24"},
		}
		if change != nil {
			change(n)
		}
		return n
	}
	const here, notLabels = "node-1", "refused: of a Node, a plugin may write labels only"
	other := "refused: " // its message is made up
	for name, tt := range map[string]struct {
		token, node string
		change      func(n *corev1.Node)
		create      bool
		sub         string
		want        string
	}{
		"nothing": {here, here, nil, false, "", ""},
		"own labels": {here, here, func(n *corev1.Node) {
			n.Labels["nvidia.com/gpu.product"] = "L4"
			n.Labels["nvidia.com/gpu.count"] = "3"
		}, false, "", ""},
		"an own label removed":     {here, here, func(n *corev1.Node) { delete(n.Labels, "nvidia.com/gpu.count") }, false, "", ""},
		"another label":            {here, here, func(n *corev1.Node) { n.Labels["x"] = "y" }, false, "", other},
		"another label changed":    {here, here, func(n *corev1.Node) { n.Labels["zone"] = "b" }, false, "", other},
		"another label removed":    {here, here, func(n *corev1.Node) { delete(n.Labels, "zone") }, false, "", other},
		"the operator's label":     {here, here, func(n *corev1.Node) { n.Labels["nvidia.com/gpu.deploy.driver"] = "false" }, false, "", other},
		"all labels removed":       {here, here, func(n *corev1.Node) { n.Labels = nil }, false, "", other},
		"another node":             {"node-2", here, func(n *corev1.Node) { n.Labels["nvidia.com/gpu.count"] = "3" }, false, "", other},
		"no node":                  {"", here, nil, false, "", "refused: the ServiceAccount " + pluginUser + " may write labels of Nodes with the token of a pod on a node only"},
		"a taint":                  {here, here, func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: "NoExecute"}} }, false, "", notLabels},
		"cordoned":                 {here, here, func(n *corev1.Node) { n.Spec.Unschedulable = true }, false, "", notLabels},
		"an annotation":            {here, here, func(n *corev1.Node) { n.Annotations["a"] = "c" }, false, "", notLabels},
		"a finalizer":              {here, here, func(n *corev1.Node) { n.Finalizers = []string{"a/b"} }, false, "", notLabels},
		"an owner":                 {here, here, func(n *corev1.Node) { n.OwnerReferences = []metav1.OwnerReference{{Name: "a"}} }, false, "", notLabels},
		"a new Node":               {here, here, nil, true, "", other},
		"the status of the Node":   {here, here, func(n *corev1.Node) { n.Status.Phase = "Running" }, false, "status", other},
		"what the kubelet changes": {here, here, func(n *corev1.Node) { n.Status.Phase = "Running"; n.ResourceVersion = "9" }, false, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var before runtime.Object
			if !tt.create {
				before = node(tt.node, nil)
			}
			object := node(tt.node, tt.change)
			got := judgeNode(t, policy, tt.token, tt.node, object, before, tt.sub)
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// judgeNode returns what the policy says of a change of a Node by a plugin with a token of a node; empty if it allows it.
func judgeNode(t *testing.T, policy claimPolicy, token, name string, object, before runtime.Object, sub string) (refused string) {
	t.Helper()
	return judge(t, policy, corev1.SchemeGroupVersion.WithKind("Node"), token, name, object, before, sub)
}

// judge is judgeNode for an object of any kind.
func judge(t *testing.T, policy claimPolicy, kind schema.GroupVersionKind, token, name string, object, before runtime.Object, sub string) (refused string) {
	t.Helper()
	attributes, request := requestOf(kind, name, object, before)
	request.SubResource = sub
	request.UserInfo = authenticationv1.UserInfo{Username: pluginUser, Extra: map[string]authenticationv1.ExtraValue{
		"authentication.kubernetes.io/credential-id": {"JTI=1"}}}
	if token != "" {
		request.UserInfo.Extra["authentication.kubernetes.io/node-name"] = authenticationv1.ExtraValue{token}
	}
	results, _, err := policy.validates.ForInput(t.Context(), attributes, request, plugincel.OptionalVariableBindings{}, nil, cel.RuntimeCELCostBudget)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		e, ok := r.ExpressionAccessor.(*expression)
		switch {
		case !ok:
			t.Fatalf("%T", r.ExpressionAccessor)
		case r.Error != nil:
			t.Fatalf("%s: %v", e.text, r.Error)
		case r.EvalResult != types.True && refused == "":
			refused = "refused: " + e.name
		}
	}
	return refused
}

// A plugin writes slices of its own node and pool, under either name of the driver: while that changes, nodes that the rollout has not reached
// have the other one.
func TestPolicy_Slices(t *testing.T) {
	policy := policyOf(t, "cleave-resourceslices")
	const here, elsewhere = "node-1", "node-2"
	for name, tt := range map[string]struct {
		node, driver, pool string
		allowed            bool
	}{
		"its own":                      {here, v1alpha1.Group, here, true},
		"the other name":               {here, "gpu.nvidia.com", here, true},
		"another driver":               {here, "gpu.example.com", here, false},
		"another node":                 {elsewhere, v1alpha1.Group, elsewhere, false},
		"another node, the other name": {elsewhere, "gpu.nvidia.com", elsewhere, false},
		"another pool, the other name": {here, "gpu.nvidia.com", elsewhere, false},
	} {
		slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice"}, Spec: resourceapi.ResourceSliceSpec{
			NodeName: &tt.node, Driver: tt.driver, Pool: resourceapi.ResourcePool{Name: tt.pool, Generation: 1, ResourceSliceCount: 1},
		}}
		for what, before := range map[string]runtime.Object{"created": nil, "updated": slice} {
			got := judge(t, policy, resourceapi.SchemeGroupVersion.WithKind("ResourceSlice"), here, slice.Name, slice, before, "")
			if (got == "") != tt.allowed {
				t.Errorf("%s, %s: got %q, want it allowed: %t", name, what, got, tt.allowed)
			}
		}
	}
}

// Labels of clients that the chart names change from one value to the other and back; no other label, and no other value.
func TestNodeLabelsPolicy_Clients(t *testing.T) {
	const dcgm, other, count = "nvidia.com/gpu.deploy.dcgm", "nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.count"
	const on, off = v1alpha1.ClientsDeployed, v1alpha1.ClientsPaused
	tests := map[string]struct {
		label, from, to string
		allowed         bool
	}{
		"paused":                  {dcgm, on, off, true},
		"and back":                {dcgm, off, on, true},
		"another value":           {dcgm, on, "false", false},
		"removed":                 {dcgm, on, "", false},
		"from another value":      {dcgm, "false", off, false},
		"what another has paused": {dcgm, "paused-for-driver-upgrade", on, false},
		"created":                 {dcgm, "", off, false},
		"another label":           {other, on, off, false},
		"another label, back":     {other, off, on, false},
		"a label that describes":  {count, "1", "2", false},
	}
	policy, _ := nodeLabelsPolicy(t, false, `["`+dcgm+`", "example.com/monitor"]`)
	both, _ := nodeLabelsPolicy(t, true, `["`+dcgm+`"]`)
	node := func(label, value string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{"zone": "a", label: value}}}
		if value == "" {
			delete(n.Labels, label)
		}
		return n
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			judge := func(policy claimPolicy, token string) bool {
				return judgeNode(t, policy, token, "node-1", node(tt.label, tt.to), node(tt.label, tt.from), "") == ""
			}
			if got := judge(policy, "node-1"); got != tt.allowed {
				t.Errorf("allowed: %t, want %t", got, tt.allowed)
			}
			if got, want := judge(both, "node-1"), tt.allowed || tt.label == count; got != want {
				t.Errorf("with nodeLabels: allowed: %t, want %t", got, want)
			}
			if judge(both, "node-2") {
				t.Error("the plugin of another node may do it, too")
			}
		})
	}
}
