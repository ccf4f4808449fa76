// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// planned is a pod of a file.
func planned(t testing.TB, containers string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	text := "{metadata: {namespace: team, name: p}, spec: {containers: " + containers + ", resourceClaims: [{name: gpu, resourceClaimTemplateName: t}]}}"
	if err := yaml.UnmarshalStrict([]byte(text), pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// using has a container of the pod use all of its claims.
func using(pod *corev1.Pod) *corev1.Pod {
	c := corev1.Container{Name: "main"}
	for _, ref := range pod.Spec.ResourceClaims {
		c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: ref.Name})
	}
	pod.Spec.Containers = append(pod.Spec.Containers, c)
	return pod
}

func templates(requests ...resourceapi.DeviceRequest) Namespace {
	t := &resourceapi.ResourceClaimTemplate{}
	t.Name, t.Spec.Spec.Devices.Requests = "t", requests
	return Namespace{Templates: map[string]*resourceapi.ResourceClaimTemplate{"t": t}}
}

func TestMiswirings(t *testing.T) {
	const extended = "limits: {nvidia.com/gpu: 1}, requests: {nvidia.com/gpu: 1}"
	one := templates(asks("gpu.cleave.dev", 1))
	part := asks("mig-1g.10gb.cleave.dev", 1)
	part.Name = "part"
	nic := asks("nic.example.com", 1)
	nic.Name = "nic"
	tests := map[string]struct {
		containers string
		in         Namespace
		want       []string
	}{
		"right":               {"[{name: a, resources: {claims: [{name: gpu}]}}]", one, nil},
		"by its request":      {"[{name: a, resources: {claims: [{name: gpu, request: gpu}]}}]", one, nil},
		"no container":        {"[{name: a}]", one, []string{`lost: no container names claim "gpu": its devices are allocated, and no container gets them. Add resources: {claims: [{name: gpu}]} to one`}},
		"another request":     {"[{name: a, resources: {claims: [{name: gpu, request: gpus}]}}]", one, []string{`lost: container a names request "gpus" of claim "gpu", which has none of that name: the container gets no device of it. Name gpu`, `lost: no container names request "gpu" of claim "gpu": its devices are allocated, and no container gets them`}},
		"one of two requests": {"[{name: a, resources: {claims: [{name: gpu, request: part}]}}]", templates(asks("gpu.cleave.dev", 1), part), []string{`lost: no container names request "gpu" of claim "gpu": its devices are allocated, and no container gets them`}},
		"a network card":      {"[{name: a}]", templates(nic), nil},
		"beside a card":       {"[{name: a, resources: {claims: [{name: gpu, request: gpu}]}}]", templates(asks("gpu.cleave.dev", 1), nic), nil},
		"and a resource":      {"[{name: a, resources: {claims: [{name: gpu}], " + extended + "}}]", one, []string{`container a names claim "gpu" and asks for nvidia.com/gpu: it gets the devices of both. Remove one of them`}},
		"a card and a GPU":    {"[{name: a, resources: {claims: [{name: gpu}], " + extended + "}}]", templates(nic), nil},
		"in two containers":   {"[{name: a, resources: {claims: [{name: gpu}]}}, {name: b, resources: {" + extended + "}}]", one, nil},
		"not known":           {"[{name: a}]", Namespace{}, nil},
		"a share":             {"[{name: a, resources: {claims: [{name: gpu}]}}, {name: b, resources: {limits: {nvidia.com/gpu.shared: 1, nvidia.com/gpu: 2}}}]", one, nil},
		"several shares": {"[{name: a, resources: {claims: [{name: gpu}]}}, {name: b, resources: {limits: {nvidia.com/gpu.shared: 2}, requests: {nvidia.com/gpu.shared: 2}}}]", one,
			[]string{"container b asks for 2 of nvidia.com/gpu.shared: it gets one share of each of 2 GPUs, not more of one. Ask for 1, or for whole GPUs"}},
	}
	b := newBed(t)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, m := range Miswirings(planned(t, tt.containers), tt.in, b.Objects) {
				if m.Lost {
					m.Message = "lost: " + m.Message
				}
				got = append(got, m.Message)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
		})
	}
}

// Pods that name a claim may use a request of it each. What none of this pod's containers names is another pod's then.
func TestMiswirings_NamedClaim(t *testing.T) {
	b := newBed(t)
	part := asks("mig-1g.10gb.cleave.dev", 1)
	part.Name = "part"
	claim := &resourceapi.ResourceClaim{}
	claim.Name, claim.Spec = "pair", templates(asks("gpu.cleave.dev", 1), part).Templates["t"].Spec.Spec
	in := Namespace{Claims: map[string]*resourceapi.ResourceClaim{"pair": claim}}
	for containers, want := range map[string]int{
		"[{name: a, resources: {claims: [{name: gpu, request: part}]}}]": 0,
		"[{name: a}]": 1,
	} {
		pod := planned(t, containers)
		pod.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: &claim.Name}
		if got := Miswirings(pod, in, b.Objects); len(got) != want {
			t.Errorf("%s: got %v, want %d mistakes", containers, got, want)
		}
	}
}

// They are said of running pods, too: that is when somebody asks.
func TestExplain_Miswired(t *testing.T) {
	b := newBed(t, "hgx-h100")
	pod, in := planned(t, "[{name: a}]"), templates(asks("gpu.cleave.dev", 1))
	const want = `No container names claim "gpu": its devices are allocated`
	for state, q := range map[State]*Question{Fits: AboutPlanned("Pod team/p", pod, in, b.Objects), Waits: AboutPod(pod, in, b.Objects)} {
		if e := b.explain(q); e.State != state || !strings.Contains(text(t, e), want) {
			t.Errorf("got %s, want %s and %q:\n%s", e.State, state, want, text(t, e))
		}
	}
	pod.Spec.NodeName = "node-1"
	if e := b.explain(AboutPod(pod, in, b.Objects)); e.State != Scheduled || !strings.Contains(text(t, e), want) {
		t.Errorf("a pod with a node: %s", text(t, e))
	}
	// Of a cluster in NVIDIA-compatible mode, it is said with the driver's name there.
	for i := range b.slices {
		b.slices[i].Spec.Driver = "gpu.nvidia.com"
	}
	for _, class := range b.Classes {
		for _, s := range class.Spec.Selectors {
			s.CEL.Expression = strings.ReplaceAll(s.CEL.Expression, "gpu.cleave.dev", "gpu.nvidia.com")
		}
	}
	const other = "No node has devices of gpu.cleave.dev, but of gpu.nvidia.com: add --driver-name gpu.nvidia.com.\n"
	for name, want := range map[string]string{"gpu.cleave.dev": other, "gpu.nvidia.com": want} {
		b.Driver = name
		if got := text(t, b.explain(AboutPod(pod, in, b.Objects))); !strings.Contains(got, want) || (name == "gpu.nvidia.com") == strings.Contains(got, other) {
			t.Errorf("with %s: %s", name, got)
		}
	}
}

// What the scheduler counts beside devices is noted where no node that serves the claims has enough of it.
func TestExplain_Scarce(t *testing.T) {
	b := newBed(t, "hgx-h100", "hgx-h100")
	for i, cpu := range []string{"8", "64"} {
		b.Nodes[i].Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("1Ti")}
	}
	for asked, want := range map[string]string{"cpu: 64, memory: 1Ti": "", "cpu: 65": "It asks for 65 of cpu, and no node where devices are free has more than 64."} {
		pod := planned(t, "[{name: a, resources: {claims: [{name: gpu}], requests: {"+asked+"}}}]")
		e := b.explain(AboutPlanned("Pod team/p", pod, templates(asks("gpu.cleave.dev", 1)), b.Objects))
		if diff := cmp.Diff(want, strings.Join(e.Notes, "; ")); diff != "" || e.State != Fits {
			t.Errorf("%s: %s; notes (-want +got):\n%s", asked, e.State, diff)
		}
	}
}

// A pod of a file is asked about as if it were created: its claims follow from its templates.
func TestExplain_Planned(t *testing.T) {
	b := newBed(t, "hgx-h100")
	pod := planned(t, "[{name: a, resources: {claims: [{name: gpu}]}}]")
	q := AboutPlanned("Deployment team/p", pod, templates(asks("gpu.cleave.dev", 9)), b.Objects)
	e := b.explain(q)
	if got := text(t, e); q.Waits() || e.State != Refused || !strings.HasPrefix(got, "Deployment team/p never fits the nodes of this cluster:\n") ||
		strings.Contains(got, "was not created") || !strings.Contains(got, "9 devices requested, but only 8 fit") {
		t.Errorf("got %s", got)
	}
	named := claim("mine", asks("gpu.cleave.dev", 1))
	named.Spec.Devices.Requests[0].Exactly.AllocationMode, named.Spec.Devices.Requests[0].Exactly.Count = "", 0 // as authors write it
	pod.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: &named.Name}
	if e := b.explain(AboutPlanned("Pod team/p", pod, namespace(named), b.Objects)); e.State != Fits {
		t.Errorf("a claim by name: %s", text(t, e))
	}
	if e := b.explain(AboutPlanned("Pod team/p", pod, Namespace{}, b.Objects)); !strings.Contains(text(t, e), "ResourceClaim mine does not exist") {
		t.Errorf("a claim that is missing: %s", text(t, e))
	}
}
