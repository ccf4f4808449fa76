// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/tools/explain"
)

// kubectlCleave runs the program as a plugin of the real kubectl.
func (s *space) kubectlCleave(ctx context.Context, args ...string) (stdout string, code int) {
	s.Helper()
	dir := s.TempDir()
	s.must(os.Symlink(filepath.Join(programsDir, "cleave"), filepath.Join(dir, "kubectl-cleave")))
	cmd := exec.CommandContext(ctx, env.cluster.Kubectl(), append([]string{"cleave"}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "KUBECONFIG="+env.cluster.Kubeconfig())
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		s.Logf("kubectl cleave %s: %s", strings.Join(args, " "), exit.Stderr)
		return string(out), exit.ExitCode()
	}
	s.must(err)
	return string(out), 0
}

// other is a pod with a claim, which runs.
func (s *space) other(ctx context.Context, spec resourceapi.ResourceClaimSpec) {
	s.Helper()
	s.create(ctx, claimPod("other", spec)...)
	s.pods.running(ctx, "other")
}

// replacePending has the pending pod ask for something else: from another template, as the controller that creates claims may still see the
// former one under its name.
func replacePending(ctx context.Context, s *space, spec resourceapi.ResourceClaimSpec) {
	s.Helper()
	s.pods.delete(ctx, "pending")
	s.create(ctx, workload.Template("fitting", spec), workload.Pod("pending", "fitting"))
}

func shareOf(class, memory, device string) resourceapi.ResourceClaimSpec {
	spec := workload.ClaimSpec(class, 1, `device.attributes["resource.kubernetes.io"].pciBusID == "`+device+`"`)
	spec.Devices.Requests[0].Exactly.Capacity = workload.Request("gpu", class, 1, "memory="+memory).Exactly.Capacity
	return spec
}

// pending is a cause for which a pod waits, and what ends it.
type pending struct {
	// create creates the pod "pending" and what it waits for.
	create func(ctx context.Context, s *space)
	says   []string
	remedy func(ctx context.Context, s *space)
}

// deleteOther ends the pod that has the GPUs.
func deleteOther(ctx context.Context, s *space) { s.pods.delete(ctx, "other") }

// patchNode changes the node.
func patchNode(patch string) func(context.Context, *space) {
	return func(ctx context.Context, s *space) {
		s.Helper()
		_, err := env.kube.CoreV1().Nodes().Patch(ctx, env.cluster.NodeName(), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		s.must(err)
	}
}

// withPod creates the pod "pending" with a claim.
func withPod(spec resourceapi.ResourceClaimSpec) func(context.Context, *space) {
	return func(ctx context.Context, s *space) { s.Helper(); s.create(ctx, claimPod("pending", spec)...) }
}

func class(name, expression string) *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}}}
}

// createClass creates or replaces a DeviceClass, and removes it after the test.
func (s *space) createClass(ctx context.Context, c *resourceapi.DeviceClass) {
	s.Helper()
	classes := env.kube.ResourceV1().DeviceClasses()
	_ = classes.Delete(ctx, c.Name, metav1.DeleteOptions{})
	_, err := classes.Create(ctx, c, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(func() { _ = classes.Delete(context.WithoutCancel(ctx), c.Name, metav1.DeleteOptions{}) })
}

const isGPU = `device.driver == "gpu.cleave.dev" && device.attributes["gpu.cleave.dev"].type == "gpu"`

// causes are ten reasons for which pods wait, by name.
var causes = map[string]pending{
	"class-missing": {withPod(workload.ClaimSpec("explain.example.com", 1)), []string{"DeviceClass explain.example.com does not exist"},
		func(ctx context.Context, s *space) { s.createClass(ctx, class("explain.example.com", isGPU)) }},
	"template-missing": {
		func(ctx context.Context, s *space) { s.create(ctx, workload.Pod("pending", "later")) },
		[]string{"ResourceClaimTemplate later does not exist"},
		func(ctx context.Context, s *space) { s.create(ctx, workload.Template("later", claimOf(1))) }},
	"claim-missing": {
		func(ctx context.Context, s *space) {
			pod, name := workload.Pod("pending", "x"), "mine"
			pod.Spec.ResourceClaims[0].ResourceClaimTemplateName, pod.Spec.ResourceClaims[0].ResourceClaimName = nil, &name
			s.create(ctx, pod)
		},
		[]string{"ResourceClaim mine does not exist"},
		func(ctx context.Context, s *space) {
			s.create(ctx, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: claimOf(1)})
		}},
	"class-of-no-device": {
		func(ctx context.Context, s *space) {
			s.createClass(ctx, class("explain.example.com", isGPU+` && device.attributes["gpu.cleave.dev"].productName.contains("H200")`))
			s.create(ctx, claimPod("pending", workload.ClaimSpec("explain.example.com", 1))...)
		},
		[]string{"none of its devices is of class explain.example.com", "never fits the nodes of this cluster", "What would fit now:", "1 of class mig-1g.10gb.cleave.dev on"},
		func(ctx context.Context, s *space) { s.createClass(ctx, class("explain.example.com", isGPU)) }},
	"selector": {withPod(claimOf(1, `device.attributes["gpu.cleave.dev"].productName.contains("H200")`)),
		[]string{`8 devices do not match`, `productName is "NVIDIA H100 80GB HBM3"`, "1 of class gpu.cleave.dev without the selectors on"},
		func(ctx context.Context, s *space) {
			replacePending(ctx, s, claimOf(1))
		}},
	"all-allocated": {
		func(ctx context.Context, s *space) { s.other(ctx, claimOf(8)); s.create(ctx, gpuPod("pending", 1)...) },
		[]string{"8 devices are allocated to", "(other, since "}, deleteOther},
	"overlapped": {
		func(ctx context.Context, s *space) {
			s.other(ctx, claimOf(8))
			s.create(ctx, claimPod("pending", workload.ClaimSpec("mig-1g.10gb.cleave.dev", 1))...)
		},
		[]string{"56 devices overlap with allocations of", "(other, since "}, deleteOther},
	"too-few": {
		func(ctx context.Context, s *space) { s.other(ctx, claimOf(3)); s.create(ctx, gpuPod("pending", 6)...) },
		[]string{"6 devices requested, but only 5 fit", "3 devices are allocated to", "5 of class gpu.cleave.dev on"}, deleteOther},
	"share": {
		func(ctx context.Context, s *space) {
			s.other(ctx, shareOf("timeslice.cleave.dev", "70Gi", "0000:1b:00.0"))
			s.create(ctx, claimPod("pending", shareOf("timeslice.cleave.dev", "20Gi", "0000:1b:00.0"))...)
		},
		[]string{"1 device is shared, and too little is left: memory 20Gi requested, at most", "(other, since "}, deleteOther},
	"taint-rule": {
		func(ctx context.Context, s *space) {
			pool := env.cluster.NodeName()
			_, err := env.kube.ResourceV1().DeviceTaintRules().Create(ctx, &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: s.name},
				Spec: resourceapi.DeviceTaintRuleSpec{DeviceSelector: &resourceapi.DeviceTaintSelector{Pool: &pool},
					Taint: resourceapi.DeviceTaint{Key: "example.com/rma", Value: "7", Effect: resourceapi.DeviceTaintEffectNoSchedule}}}, metav1.CreateOptions{})
			if apierrors.IsNotFound(err) { // before Kubernetes 1.37
				s.Skip("the API server has no DeviceTaintRules of resource.k8s.io/v1")
			}
			s.must(err)
			s.Cleanup(func() {
				_ = env.kube.ResourceV1().DeviceTaintRules().Delete(context.WithoutCancel(ctx), s.name, metav1.DeleteOptions{})
			})
			s.create(ctx, gpuPod("pending", 1)...)
		},
		[]string{"8 devices are tainted example.com/rma=7:NoSchedule since"},
		func(ctx context.Context, s *space) {
			s.must(env.kube.ResourceV1().DeviceTaintRules().Delete(ctx, s.name, metav1.DeleteOptions{}))
		}},
	"constraint": {
		func(ctx context.Context, s *space) {
			attribute := resourceapi.FullyQualifiedName("gpu.cleave.dev/parentUUID")
			spec := workload.ClaimSpec("mig-4g.40gb.cleave.dev", 2)
			spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &attribute}}
			s.create(ctx, claimPod("pending", spec)...)
		},
		[]string{"no combination satisfies matchAttribute gpu.cleave.dev/parentUUID"},
		func(ctx context.Context, s *space) {
			replacePending(ctx, s, workload.ClaimSpec("mig-4g.40gb.cleave.dev", 2))
		}},
	"cordoned": {
		func(ctx context.Context, s *space) {
			patchNode(`{"spec":{"unschedulable":true}}`)(ctx, s)
			s.Cleanup(func() { patchNode(`{"spec":{"unschedulable":null}}`)(context.WithoutCancel(ctx), s) })
			s.create(ctx, gpuPod("pending", 1)...)
		},
		[]string{"the node is cordoned"}, patchNode(`{"spec":{"unschedulable":null}}`)},
	"node-selector": {
		func(ctx context.Context, s *space) {
			objects := gpuPod("pending", 1)
			podOf(objects).Spec.NodeSelector = map[string]string{"explain": "here"}
			s.create(ctx, objects...)
		},
		[]string{"the pod's node selector or affinity excludes it"}, patchNode(`{"metadata":{"labels":{"explain":"here"}}}`)},
}

// explanation is what the program says of a pod.
func (s *space) explanation(ctx context.Context, pod string) (e explain.Explanation, code int) {
	s.Helper()
	out, code := s.kubectlCleave(ctx, "explain", "pod", pod, "-n", s.name, "-o", "json")
	s.must(json.Unmarshal([]byte(out), &e))
	return e, code
}

// applyAlternative asks for the first of what would fit now as it is said, and sees it run. It returns how many there are to apply.
func (s *space) applyAlternative(ctx context.Context) int {
	s.Helper()
	e, _ := s.explanation(ctx, "pending")
	if len(e.Alternatives) == 0 {
		return 0
	}
	a := e.Alternatives[0]
	var amounts []string
	for _, capacity := range a.Capacity {
		amounts = append(amounts, strings.Replace(capacity, " ", "=", 1))
	}
	spec := workload.ClaimSpec(a.Class, a.Count)
	spec.Devices.Requests[0].Exactly.Capacity = workload.Request("gpu", a.Class, a.Count, amounts...).Exactly.Capacity
	s.create(ctx, claimPod("alternative", spec)...)
	s.pods.running(ctx, "alternative")
	s.pods.delete(ctx, "alternative")
	return 1
}

// Each cause is explained by kubectl's plugin, and what it names as the remedy lets the pod run.
func TestExplain_Pending(t *testing.T) {
	applied, ran := 0, 0
	defer func() {
		if ran == len(causes) && applied < 2 {
			t.Errorf("%d alternatives were applied, want those of two causes or more", applied)
		}
	}()
	for name, cause := range causes {
		t.Run(name, func(t *testing.T) {
			ctx, s := newSpace(t)
			cause.create(ctx, s)
			var out string
			var code int
			// The API server knows of claims a moment later; without one, the scheduler says nothing at all.
			s.eventually(ctx, "the explanation", func(ctx context.Context) (bool, string, error) {
				out, code = s.kubectlCleave(ctx, "explain", "pod", "pending", "-n", s.name)
				return strings.Contains(out, cause.says[0]), out, nil
			})
			if code != 1 {
				s.Errorf("explain: got exit code %d, want 1", code)
			}
			for _, want := range cause.says {
				if !strings.Contains(out, want) {
					s.Errorf("explain does not say %q:\n%s", want, out)
				}
			}
			applied += s.applyAlternative(ctx)
			ran++
			cause.remedy(ctx, s)
			s.pods.running(ctx, "pending")
			e, code := s.explanation(ctx, "pending")
			if code != 0 || e.State != explain.Scheduled || len(e.Devices) == 0 {
				s.Errorf("explain of the running pod: got %d, %+v", code, e)
			}
		})
	}
}

// The overview counts what pods have.
func TestInspect_AllNodes(t *testing.T) {
	ctx, s := newSpace(t)
	s.create(ctx, gpuPod("whole", 2)...)
	s.create(ctx, claimPod("part", workload.ClaimSpec("mig-3g.40gb.cleave.dev", 1))...)
	s.pods.running(ctx, "whole")
	s.pods.running(ctx, "part")
	out, code := s.kubectlCleave(ctx, "inspect")
	var line string
	for l := range strings.Lines(out) {
		if strings.HasPrefix(l, env.cluster.NodeName()+" ") {
			line = strings.Join(strings.Fields(l), " ")
		}
	}
	if code != 0 || !strings.Contains(line, "NVIDIA H100 80GB HBM3 8 5 2 1 0 0 0 ") || !strings.Contains(line, "% 5 whole, ") {
		t.Errorf("got %d and\n%s", code, out)
	}
	if out, code = s.kubectlCleave(ctx, "inspect", env.cluster.NodeName()); code != 0 || !strings.Contains(out, s.name+"/") {
		t.Errorf("of the node: got %d and\n%s", code, out)
	}
}
