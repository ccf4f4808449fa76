// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/dynamic-resource-allocation/cel"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/workload"
)

const examplesDir = "../../deployments/examples"

func example(t *testing.T, name string) []runtime.Object {
	t.Helper()
	objects, err := workload.Load(filepath.Join(examplesDir, name+".yaml"))
	must(t, err)
	return objects
}

// wanted is what the examples get on an empty hgx-h100 node with the default policy: for each pod, in the order of the
// file, GPU and profile of each device, or GPU and its type.
var wanted = map[string][]string{
	"extended-resource":        {"7 gpu"},
	"four-gpus":                {"7 gpu", "6 gpu", "5 gpu", "4 gpu"},
	"mig-extended-resource":    {"0 1g.10gb", "0 1g.10gb"},
	"mig-first-available":      {"0 2g.20gb"},
	"mig-mps-services":         {"0 3g.40gb mig-mps", "0 3g.40gb mig-mps"}, // by a policy of its own
	"mig-one-parent":           {"0 2g.20gb", "0 2g.20gb", "0 2g.20gb"},
	"mig-or-mps":               {"0 1g.10gb"},
	"mig-pair-4g-3g":           {"0 4g.40gb", "0 3g.40gb"},
	"mps-two-services":         {"3 mps", "3 mps"},
	"one-gpu":                  {"7 gpu"},
	"quota":                    nil, // it has no pod
	"seven-small-pods":         slices.Repeat([]string{"0 1g.10gb"}, 7),
	"shared-claim":             {"7 gpu"},
	"timeslice-four-notebooks": slices.Repeat([]string{"3 timeslice"}, 4),
	"topology-four-nvlink":     {"7 gpu", "6 gpu", "5 gpu", "4 gpu"},
	"topology-gpu-and-nic":     {"2 gpu", "nic of 2"}, // the first GPU with a card under its root complex
	"topology-two-numa":        {"7 gpu", "6 gpu"},
}

// policies are those of the examples that the default policy is not enough for.
var policies = map[string]string{"mig-mps-services": "shared-partitions.yaml"}

func TestExamples_Allocations(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(examplesDir, "*.yaml"))
	if err != nil || len(files) != len(wanted) {
		t.Errorf("there are %d examples, and the test knows of %d (%v)", len(files), len(wanted), err)
	}
	inventory := offeredNode(t, "hgx-h100")
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, inventory)
			if policyFile := policies[name]; policyFile != "" {
				data := readFile(t, filepath.Join(examplesDir, "policies", policyFile))
				p, err := v1alpha1.DecodeNodePolicy(data)
				must(t, err)
				c = newCluster(t, offeredNode(t, "hgx-h100", p.Rules...))
			}
			c.addCards(0, 2)
			pods, byPod := c.allocateAll(t, example(t, name))
			var got []string
			for _, pod := range pods {
				got = append(got, byPod[pod]...)
			}
			if diff := gocmp.Diff(wanted[name], got); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
		})
	}
}

func describe(c *cluster, device string) string {
	if i, ok := strings.CutPrefix(device, "nic-"); ok {
		return "nic of " + i
	}
	shape := cmp.Or(c.text(device, "profile"), c.text(device, "type"))
	if kind := c.text(device, "type"); strings.HasPrefix(kind, "mig-") {
		shape += " " + kind
	}
	return string(rune('0'+c.parent(device))) + " " + shape
}

func TestExamples_OnBoards(t *testing.T) {
	for name, boards := range map[string]map[string]string{
		// An A30 in MIG mode has no partition of 10 GB by that name, and no shares while it is in MIG mode.
		"mig-or-mps": {
			"H100-80": "0 1g.10gb", "A100-40": "0 1g.10gb", "A30": "", "H100-94": "0 mps", "L40S": "0 mps", "T4": "0 mps", "RTX-PRO-6000": "0 mps",
		},
		"mig-first-available": {"H100-80": "0 2g.20gb", "A100-40": "0 3g.20gb"},
	} {
		for board, want := range boards {
			c := newCluster(t, offered(boardNode(t, board)))
			_, claims := podClaims(t, example(t, name), c.class)
			got := ""
			if devices, _, err := c.try(claims[name]...); err == nil {
				got = describe(c, devices[0])
			}
			if got != want {
				t.Errorf("%s on %s: got %q, want %q", name, board, got, want)
			}
		}
	}
}

// TestExamples_QuotaClasses: the API server takes any name, and a quota for a class that does not exist
// limits nothing.
func TestExamples_QuotaClasses(t *testing.T) {
	var names []string
	for _, c := range manifestClasses(t) {
		names = append(names, c.Name+corev1.ResourceClaimsPerClass)
		if c.Spec.ExtendedResourceName != nil {
			names = append(names, corev1.DefaultResourceRequestsPrefix+*c.Spec.ExtendedResourceName)
		}
	}
	for _, o := range example(t, "quota") {
		if quota, ok := o.(*corev1.ResourceQuota); ok {
			for name := range quota.Spec.Hard {
				if !slices.Contains(names, string(name)) {
					t.Errorf("%s is of no DeviceClass", name)
				}
			}
		}
	}
}

// checkPod checks that every container refers to claims and requests that are there, and that nothing is left unused.
func checkPod(t *testing.T, pod *corev1.Pod, claims []*resourceapi.ResourceClaim) {
	t.Helper()
	if len(claims) == 0 {
		t.Errorf("pod %s claims nothing", pod.Name)
	}
	used := map[string]bool{}
	for _, container := range pod.Spec.Containers {
		for _, ref := range container.Resources.Claims {
			used[ref.Name] = true
			at := slices.IndexFunc(pod.Spec.ResourceClaims, func(r corev1.PodResourceClaim) bool { return r.Name == ref.Name })
			if at < 0 {
				t.Errorf("pod %s, container %s: no claim %s", pod.Name, container.Name, ref.Name)
				continue
			}
			requests := claims[at].Spec.Devices.Requests
			if ref.Request != "" && !slices.ContainsFunc(requests, func(r resourceapi.DeviceRequest) bool { return r.Name == ref.Request }) {
				t.Errorf("pod %s, container %s: claim %s has no request %s", pod.Name, container.Name, ref.Name, ref.Request)
			}
		}
	}
	for _, r := range pod.Spec.ResourceClaims {
		if !used[r.Name] {
			t.Errorf("pod %s: no container uses claim %s", pod.Name, r.Name)
		}
	}
}

// checkExpressions checks a claim's names and CEL expressions as the API server does.
func checkExpressions(t *testing.T, claim *resourceapi.ResourceClaim) {
	t.Helper()
	for _, r := range claim.Spec.Devices.Requests {
		if msgs := validation.IsDNS1123Label(r.Name); len(msgs) > 0 {
			t.Errorf("request %q: %v", r.Name, msgs)
		}
		if r.Exactly != nil {
			checkSelectors(t, r.Exactly.Selectors)
		}
		for _, s := range r.FirstAvailable {
			checkSelectors(t, s.Selectors)
		}
	}
}

func checkSelectors(t *testing.T, selectors []resourceapi.DeviceSelector) {
	t.Helper()
	for _, s := range selectors {
		compiled := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(s.CEL.Expression, cel.Options{})
		if compiled.Error != nil {
			t.Errorf("expression %q: %v", s.CEL.Expression, compiled.Error)
			continue
		}
		if len(s.CEL.Expression) > resourceapi.CELSelectorExpressionMaxLength || compiled.MaxCost > resourceapi.CELSelectorExpressionMaxCost {
			t.Errorf("expression %q is too long or costs too much: %d", s.CEL.Expression, compiled.MaxCost)
		}
	}
}
