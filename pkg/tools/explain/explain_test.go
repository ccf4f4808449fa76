// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// since is the time of taints.
var since = metav1.NewTime(time.Date(2026, 11, 22, 2, 14, 0, 0, time.UTC))

// unhealthy taints all devices of a node whose names begin with those of GPUs.
func (b *bed) taint(key, value string, devices ...string) {
	b.Helper()
	for i := range b.slices {
		for j := range b.slices[i].Spec.Devices {
			d := &b.slices[i].Spec.Devices[j]
			if slices.ContainsFunc(devices, func(prefix string) bool { return len(d.Name) >= len(prefix) && d.Name[:len(prefix)] == prefix }) {
				d.Taints = []resourceapi.DeviceTaint{{Key: key, Value: value, Effect: resourceapi.DeviceTaintEffectNoSchedule, TimeAdded: &since}}
			}
		}
	}
}

func whole(count int64) *resourceapi.ResourceClaim {
	return claim("trainer", asks("gpu.cleave.dev", count))
}

// withConstraint has all devices share an attribute.
func withConstraint(c *resourceapi.ResourceClaim, attribute string) *resourceapi.ResourceClaim {
	name := resourceapi.FullyQualifiedName(attribute)
	c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &name}}
	return c
}

func podOf(claims ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "trainer"}}
	for _, name := range claims {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: &name})
	}
	return using(pod)
}

func namespace(claims ...*resourceapi.ResourceClaim) Namespace {
	in := Namespace{Claims: map[string]*resourceapi.ResourceClaim{}}
	for _, c := range claims {
		in.Claims[c.Name] = c
	}
	return in
}

// Each case is a cause, with the text that a person reads.
func TestExplain_Devices(t *testing.T) {
	const gpu0 = "gpu-0000-1b-00-0"
	tests := map[string]func(b *bed) *Question{
		"fits": func(b *bed) *Question { return AboutClaim(whole(2)) },
		"all-allocated": func(b *bed) *Question {
			for i := range 8 {
				b.allocate("node-1", fmt.Sprintf("train-%d", i), asks("gpu.cleave.dev", 1))
			}
			b.Claims[2].DeletionTimestamp = &since
			b.allocate("node-2", "big", asks("gpu.cleave.dev", 8))
			return AboutClaim(whole(1))
		},
		"too-many": func(b *bed) *Question {
			b.allocate("node-1", "other", asks("gpu.cleave.dev", 3))
			return AboutClaim(whole(8 + 1))
		},
		"counters": func(b *bed) *Question {
			for i := range 16 {
				b.allocate(fmt.Sprintf("node-%d", i/8+1), fmt.Sprintf("wide-%d", i), asks("mig-4g.40gb.cleave.dev", 1))
			}
			return AboutClaim(claim("small", asks("mig-4g.40gb.cleave.dev", 1)))
		},
		// Two claims have one GPU, and the scheduler gives nobody the seven others.
		"overdrawn": func(b *bed) *Question {
			b.Nodes = b.Nodes[:1]
			late, part := b.allocate("node-1", "late", asks("gpu.cleave.dev", 1)), b.allocate("node-1", "part", asks("mig-1g.10gb.cleave.dev", 1))
			part.Status.Allocation.Devices.Results[0].Device = late.Status.Allocation.Devices.Results[0].Device + "-mig-19-6"
			if len(b.try("node-1", whole(1))) > 0 {
				b.Fatal("it fits")
			}
			return AboutClaim(whole(1))
		},
		"taint": func(b *bed) *Question {
			b.taint("gpu.cleave.dev/unhealthy", "xid-79", "gpu-")
			return AboutClaim(whole(1))
		},
		"taint-rule": func(b *bed) *Question {
			pool := "node-1"
			b.Rules = append(b.Rules, &resourceapi.DeviceTaintRule{Spec: resourceapi.DeviceTaintRuleSpec{
				DeviceSelector: &resourceapi.DeviceTaintSelector{Pool: &pool},
				Taint:          resourceapi.DeviceTaint{Key: "example.com/rma", Effect: resourceapi.DeviceTaintEffectNoExecute, TimeAdded: &since}}})
			b.allocate("node-2", "big", asks("gpu.cleave.dev", 8))
			return AboutClaim(whole(1))
		},
		"selector": func(b *bed) *Question {
			return AboutClaim(claim("c", selecting(asks("gpu.cleave.dev", 1),
				`device.attributes["gpu.cleave.dev"].architecture == "Hopper" && device.attributes["gpu.cleave.dev"].productName.contains("H200")`)))
		},
		"selector-fails": func(b *bed) *Question {
			return AboutClaim(claim("c", selecting(asks("gpu.cleave.dev", 1), `device.attributes["gpu.cleave.dev"].profile == "1g.10gb"`)))
		},
		"class-missing": func(b *bed) *Question { return AboutClaim(claim("c", asks("gpu.example.com", 1))) },
		"class-of-another-board": func(b *bed) *Question {
			b.node("node-3", "", nil)
			return AboutClaim(claim("c", asks("mig-1g.5gb.cleave.dev", 1)))
		},
		"share-memory": func(b *bed) *Question {
			for _, node := range []string{"node-1", "node-2"} {
				for i := range 8 {
					b.allocate(node, fmt.Sprintf("%s-svc-%d", node, i), asks("mps.cleave.dev", 1, "memory=60Gi", "cores=50"))
				}
			}
			return AboutClaim(claim("c", asks("mps.cleave.dev", 1, "memory=30Gi")))
		},
		"share-too-large": func(b *bed) *Question { return AboutClaim(claim("c", asks("mps.cleave.dev", 1, "memory=200Gi"))) },
		"share-unknown":   func(b *bed) *Question { return AboutClaim(claim("c", asks("timeslice.cleave.dev", 1, "cores=20"))) },
		"constraint": func(b *bed) *Question {
			b.Nodes = b.Nodes[:1]
			for i := range 8 { // one of each GPU is left
				b.allocate("node-1", fmt.Sprintf("wide-%d", i), asks("mig-4g.40gb.cleave.dev", 1))
				b.allocate("node-1", fmt.Sprintf("two-%d", i), asks("mig-2g.20gb.cleave.dev", 1))
			}
			return AboutClaim(withConstraint(claim("c", asks("mig-1g.10gb.cleave.dev", 2)), "gpu.cleave.dev/parentUUID"))
		},
		"together": func(b *bed) *Question {
			b.allocate("node-1", "other", asks("gpu.cleave.dev", 7))
			b.allocate("node-2", "more", asks("gpu.cleave.dev", 7))
			r := asks("mig-7g.80gb.cleave.dev", 1)
			r.Name = "part"
			return AboutClaim(claim("c", asks("gpu.cleave.dev", 1), r))
		},
		"alternatives-of-a-request": func(b *bed) *Question {
			b.allocate("node-1", "other", asks("gpu.cleave.dev", 8))
			b.allocate("node-2", "more", asks("gpu.cleave.dev", 8))
			return AboutClaim(claim("c", resourceapi.DeviceRequest{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{
				{Name: "small", DeviceClassName: "mig-1g.10gb.cleave.dev"}, {Name: "slice", DeviceClassName: "timeslice.cleave.dev"}}}))
		},
		"incomplete": func(b *bed) *Question {
			b.slices = slices.Delete(b.slices, 3, 4)
			b.allocate("node-2", "big", asks("gpu.cleave.dev", 8))
			return AboutClaim(whole(1))
		},
		"invalid-pool": func(b *bed) *Question {
			b.Nodes = b.Nodes[:1]
			b.device("node-1", gpu0).Name = "gpu-0000-43-00-0"
			return AboutClaim(whole(1))
		},
		// A pool of more slices than they say is none for the scheduler.
		"too-many-slices": func(b *bed) *Question {
			b.Nodes = b.Nodes[:1]
			for i := range b.slices {
				b.slices[i].Spec.Pool.ResourceSliceCount = 1
			}
			return AboutClaim(whole(1))
		},
		// Most there is, and no step of the range.
		"share-between-steps": func(b *bed) *Question { return AboutClaim(claim("c", asks("mps.cleave.dev", 1, "memory=81001Mi"))) },
		// Devices of another driver, which no node has.
		"class-of-another-driver": func(b *bed) *Question {
			b.node("node-3", "", nil)
			nic := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic.example.com"}}
			nic.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "nic.example.com"`}}}
			b.Classes = append(b.Classes, nic)
			return AboutClaim(claim("c", asks("nic.example.com", 1)))
		},
		// A node without the driver has what the other alternative asks for.
		"alternative-of-another-driver": func(b *bed) *Question {
			name := "node-3"
			b.node(name, "", nil)
			b.allocate("node-1", "other", asks("gpu.cleave.dev", 8))
			b.allocate("node-2", "more", asks("gpu.cleave.dev", 8))
			b.slices = append(b.slices, resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "nics"}, Spec: resourceapi.ResourceSliceSpec{
				Driver: "nic.example.com", NodeName: &name, Pool: resourceapi.ResourcePool{Name: name, ResourceSliceCount: 1}, Devices: []resourceapi.Device{{Name: "nic-0"}}}})
			nic := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic.example.com"}}
			nic.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "nic.example.com"`}}}
			b.Classes = append(b.Classes, nic)
			return AboutClaim(claim("c", resourceapi.DeviceRequest{Name: "any", FirstAvailable: []resourceapi.DeviceSubRequest{
				{Name: "gpu", DeviceClassName: "gpu.cleave.dev"}, {Name: "nic", DeviceClassName: "nic.example.com"}}}))
		},
		"all-of-overlapping": func(b *bed) *Question {
			r := selecting(asks("mig.cleave.dev", 0), `device.attributes["gpu.cleave.dev"].profile in ["4g.40gb", "7g.80gb"]`)
			r.Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
			return AboutClaim(claim("c", r))
		},
		"all-while-publishing": func(b *bed) *Question {
			r := asks("gpu.cleave.dev", 0)
			r.Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
			b.slices = b.slices[1:]
			return AboutClaim(claim("c", r))
		},
		"not-publishing": func(b *bed) *Question {
			b.slices = nil
			return AboutClaim(whole(1))
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, "hgx-h100", "hgx-h100")
			checkGolden(t, name, b.explain(tt(b)))
		})
	}
}

func TestExplain_Pods(t *testing.T) {
	template := "trainer"
	fromTemplate := func() *corev1.Pod {
		pod := podOf()
		pod.Spec.ResourceClaims, pod.Spec.Containers = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}, nil
		return using(pod)
	}
	tests := map[string]func(b *bed) *Question{
		"pod-fits": func(b *bed) *Question {
			pod := podOf("trainer")
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes are available: 2 Insufficient cpu."}}
			return AboutPod(pod, namespace(whole(1)), b.Objects)
		},
		"claim-missing":    func(b *bed) *Question { return AboutPod(podOf("trainer"), namespace(), b.Objects) },
		"template-missing": func(b *bed) *Question { return AboutPod(fromTemplate(), namespace(), b.Objects) },
		"claim-not-created": func(b *bed) *Question {
			return AboutPod(fromTemplate(), Namespace{Templates: map[string]*resourceapi.ResourceClaimTemplate{
				template: {ObjectMeta: metav1.ObjectMeta{Name: template}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: whole(1).Spec}}}}, b.Objects)
		},
		"nodes": func(b *bed) *Question {
			b.Nodes[0].Spec.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule}}
			b.Nodes[1].Spec.Unschedulable = true
			b.node("node-3", "l40s", &v1alpha1.NodePolicy{}).Labels = map[string]string{"zone": "b"}
			pod := podOf("trainer")
			pod.Spec.NodeSelector = map[string]string{"zone": "a"}
			for _, n := range b.Nodes[:2] {
				n.Labels = map[string]string{"zone": "a"}
			}
			return AboutPod(pod, namespace(whole(1)), b.Objects)
		},
		"allocated-elsewhere": func(b *bed) *Question {
			c := b.allocate("node-1", "trainer", asks("gpu.cleave.dev", 1))
			b.Nodes[0].Spec.Unschedulable = true
			return AboutPod(podOf("trainer"), namespace(c), b.Objects)
		},
		"extended-resource": func(b *bed) *Question {
			b.allocate("node-1", "other", asks("gpu.cleave.dev", 7))
			b.allocate("node-2", "more", asks("gpu.cleave.dev", 8))
			pod := podOf()
			pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				"nvidia.com/gpu": *quantity(2), "cpu": *quantity(1)}}}}
			return AboutPod(pod, namespace(), b.Objects)
		},
		"extended-resource-of-init-containers": func(b *bed) *Question {
			b.allocate("node-1", "other", asks("gpu.cleave.dev", 6))
			b.allocate("node-2", "more", asks("gpu.cleave.dev", 8))
			always := corev1.ContainerRestartPolicyAlways
			wants := func(name string, gpus int64) corev1.Container {
				return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"nvidia.com/gpu": *quantity(gpus)}}}
			}
			pod := podOf()
			sidecar := wants("sidecar", 1)
			sidecar.RestartPolicy = &always
			pod.Spec.InitContainers = []corev1.Container{wants("warm-up", 2), wants("check", 1), sidecar, wants("late", 1)}
			pod.Spec.Containers = []corev1.Container{wants("main", 1)}
			return AboutPod(pod, namespace(), b.Objects)
		},
		"extended-resource-of-device-plugins": func(b *bed) *Question {
			b.allocate("node-2", "more", asks("gpu.cleave.dev", 8))
			b.node("node-3", "", nil)
			for _, n := range []*corev1.Node{b.Nodes[0], b.Nodes[2]} {
				n.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": *quantity(8)}
			}
			pod := podOf()
			pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"nvidia.com/gpu": *quantity(1)}}}}
			return AboutPod(pod, namespace(), b.Objects)
		},
		"node-not-ready": func(b *bed) *Question {
			b.Nodes[0].Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule, TimeAdded: &since}}
			b.Nodes[1].Spec.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule}} // pods may tolerate it
			return AboutClaim(whole(1))
		},
		"no-claims": func(b *bed) *Question { return AboutPod(podOf(), namespace(), b.Objects) },
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, "hgx-h100", "hgx-h100")
			checkGolden(t, name, b.explain(tt(b)))
		})
	}
}

// What one claim is told is not what another one was told before.
func TestExplain_SeveralQuestions(t *testing.T) {
	small, large := whole(1), claim("large", asks("gpu.cleave.dev", 9))
	for name, claims := range map[string][]*resourceapi.ResourceClaim{"small first": {small, large}, "large first": {large, small}} {
		b := newBed(t, "hgx-h100")
		var questions []*Question
		for _, c := range claims {
			questions = append(questions, AboutClaim(c))
		}
		c := NewCluster(b.Objects, questions...)
		for i := range b.slices {
			c.AddSlice(&b.slices[i])
		}
		for i, q := range questions {
			e, err := c.Explain(t.Context(), q)
			b.must(err)
			want := map[bool]State{true: Fits, false: Refused}[claims[i] == small]
			if e.State != want {
				t.Errorf("%s: %s is %s, want %s", name, e.Subject, e.State, want)
			}
			if want == Refused && (len(e.Groups) != 1 || e.Groups[0].Causes[0].Kind != Count) {
				t.Errorf("%s: %s: got %s", name, e.Subject, text(t, e))
			}
		}
	}
}

// A search that ends before it is done finds nothing out, and the next one is not misled by it.
func TestExplain_Ended(t *testing.T) {
	b := newBed(t, "hgx-h100")
	for want, claimed := range map[State]*resourceapi.ResourceClaim{Refused: whole(9), Fits: claim("c", asks("mps.cleave.dev", 1, "memory=30Gi"))} {
		q := AboutClaim(claimed)
		c := b.cluster(q)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		e, err := c.Explain(ended, q)
		if err != nil || len(e.Groups) != 1 || len(e.Groups[0].Causes) != 1 || e.Groups[0].Causes[0].Kind != Timeout {
			t.Errorf("got %+v, %v; want a search that took too long", e, err)
		}
		if e, err = c.Explain(t.Context(), q); err != nil || e.State != want {
			t.Errorf("asked again: got %+v, %v", e, err)
		}
	}
}

// Requests are those of the scheduler's plugin (TestCreateRequestsAndMappings there): init containers use the devices of later ones.
func TestExtendedRequests(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	const name = "nvidia.com/gpu"
	wants := func(as string, gpus int64) corev1.Container {
		return corev1.Container{Name: as, Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{name: *quantity(gpus)}}}
	}
	sidecar := func(as string, gpus int64) corev1.Container {
		c := wants(as, gpus)
		c.RestartPolicy = &always
		return c
	}
	for what, tt := range map[string]struct {
		init, main []corev1.Container
		want       []string
	}{
		"main":                       {nil, []corev1.Container{wants("a", 1), wants("b", 2)}, []string{"a-gpu 1", "b-gpu 2"}},
		"init as much":               {[]corev1.Container{wants("i", 3)}, []corev1.Container{wants("a", 1), wants("b", 2)}, []string{"a-gpu 1", "b-gpu 2"}},
		"init more":                  {[]corev1.Container{wants("i", 4)}, []corev1.Container{wants("a", 1)}, []string{"i-gpu 3", "a-gpu 1"}},
		"init alone":                 {[]corev1.Container{wants("i", 1), wants("j", 2)}, []corev1.Container{{Name: "a"}}, []string{"j-gpu 2"}},
		"sidecar before init":        {[]corev1.Container{sidecar("s", 1), wants("i", 1)}, []corev1.Container{{Name: "a"}}, []string{"i-gpu 1", "s-gpu 1"}},
		"sidecar after init":         {[]corev1.Container{wants("i", 1), sidecar("s", 1)}, []corev1.Container{{Name: "a"}}, []string{"s-gpu 1"}},
		"init more than the sidecar": {[]corev1.Container{wants("i", 3), sidecar("s", 1)}, []corev1.Container{wants("a", 1)}, []string{"i-gpu 1", "s-gpu 1", "a-gpu 1"}},
	} {
		t.Run(what, func(t *testing.T) {
			var got []string
			for _, r := range extendedRequests(slices.Concat(tt.init, tt.main), len(tt.init), name, "gpu.cleave.dev") {
				got = append(got, fmt.Sprint(r.Name, " ", r.Exactly.Count))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
