// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/cel-go/common/types"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/apis/cel"

	"github.com/cleave-dra/cleave/pkg/domain/nodelabels"
)

// pluginUser is the plugin's in the policy of these tests.
const pluginUser = "system:serviceaccount:cleave-system:cleave-plugin"

// nodeLabelsPolicy is the chart's policy for labels of Nodes, which the manifests lack, as the value nodeLabels is off.
func nodeLabelsPolicy(t *testing.T) (policy claimPolicy, document string) {
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
	document = regexp.MustCompile(`(?m)^  labels:\n.*include "cleave.labels".*\n`).ReplaceAllString(document, "")
	return compiled(t, document), document
}

// The policy has the labels of the plugin, and no others.
func TestNodeLabelsPolicy_Keys(t *testing.T) {
	_, document := nodeLabelsPolicy(t)
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
	policy, _ := nodeLabelsPolicy(t)
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
			attributes, request := requestOf(corev1.SchemeGroupVersion.WithKind("Node"), tt.node, object, before)
			request.SubResource = tt.sub
			request.UserInfo = authenticationv1.UserInfo{Username: pluginUser, Extra: map[string]authenticationv1.ExtraValue{
				"authentication.kubernetes.io/credential-id": {"JTI=1"}}}
			if tt.token != "" {
				request.UserInfo.Extra["authentication.kubernetes.io/node-name"] = authenticationv1.ExtraValue{tt.token}
			}
			results, _, err := policy.validates.ForInput(t.Context(), attributes, request, plugincel.OptionalVariableBindings{}, nil, cel.RuntimeCELCostBudget)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, r := range results {
				e, ok := r.ExpressionAccessor.(*expression)
				switch {
				case !ok:
					t.Fatalf("%T", r.ExpressionAccessor)
				case r.Error != nil:
					t.Fatalf("%s: %v", e.text, r.Error)
				case r.EvalResult != types.True && got == "":
					got = "refused: " + e.name
				}
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
