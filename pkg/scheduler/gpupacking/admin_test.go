// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/kube-scheduler/framework"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
	"github.com/cleave-dra/cleave/pkg/tools/selector"
)

// asAdmin is a request for admin access.
func asAdmin(c *resourceapi.ResourceClaimSpec) {
	c.Devices.Requests[0].Exactly.AdminAccess = new(true)
}

// toAll is a request for all devices of a class.
func toAll(c *resourceapi.ResourceClaimSpec) {
	c.Devices.Requests[0].Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
}

func TestOnlyAdmin(t *testing.T) {
	b := newBed(t, "{}")
	resources := func(pod *corev1.Pod, name, count string) *corev1.Pod {
		pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceName(name): resource.MustParse(count)},
		}}}
		return pod
	}
	with := func(pod *corev1.Pod, names ...string) *corev1.Pod {
		for _, name := range names {
			pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: &name})
		}
		return pod
	}
	b.pod("ordinary", "gpu")
	b.pod("admin", "gpu", asAdmin)
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want bool // only admin access
	}{
		"no claim":               {&corev1.Pod{}, false},
		"an ordinary claim":      {b.pod("a", "gpu"), false},
		"admin access":           {b.pod("b", "gpu", asAdmin), true},
		"to all":                 {b.pod("c", "gpu", asAdmin, toAll), true},
		"adminAccess: false":     {b.pod("d", "gpu", func(c *resourceapi.ResourceClaimSpec) { c.Devices.Requests[0].Exactly.AdminAccess = new(false) }), false},
		"two claims":             {with(b.pod("e", "gpu", asAdmin), "admin"), true},
		"an ordinary one, too":   {with(b.pod("f", "gpu", asAdmin), "ordinary"), false},
		"one that is to be, too": {with(b.pod("g", "gpu", asAdmin), "later"), false},
		"an ordinary request, too": {b.pod("h", "gpu", asAdmin, func(c *resourceapi.ResourceClaimSpec) {
			c.Devices.Requests = append(c.Devices.Requests, resourceapi.DeviceRequest{Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "nic"}})
		}), false},
		"alternatives": {b.pod("i", "gpu", func(c *resourceapi.ResourceClaimSpec) {
			c.Devices.Requests[0] = resourceapi.DeviceRequest{FirstAvailable: []resourceapi.DeviceSubRequest{{DeviceClassName: "gpu"}}}
		}), false},
		"an extended resource, too": {resources(b.pod("j", "gpu", asAdmin), "nvidia.com/gpu", "1"), false},
		"none of it":                {resources(b.pod("k", "gpu", asAdmin), "nvidia.com/gpu", "0"), true},
		"other resources, too":      {resources(b.pod("l", "gpu", asAdmin), "cpu", "1"), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := (&asks{dra: fakeDRA{b}}).onlyAdmin(tt.pod); got != tt.want {
				t.Errorf("got %t, want %t", got, tt.want)
			}
			both := strings.HasSuffix(name, ", too") && !tt.want
			if got := (&CandidateSlices{SharedDRAManager: fakeDRA{b}}).CountsAdmin(tt.pod); got != both {
				t.Errorf("admin access along with devices: got %t, want %t", got, both)
			}
		})
	}
}

func TestAdminNodes(t *testing.T) {
	b := newBed(t, "{}")
	b.addNodes("t4", "n1", "n2", "n3")
	on := func(pod *corev1.Pod, name string) *corev1.Pod {
		pod.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": name}
		return pod
	}
	broken := b.pod("e", "gpu", asAdmin)
	broken.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: "Some"}}}}}}}
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want []string // nil for no limit
	}{
		"a launcher":        {on(b.pod("a", "gpu", asAdmin, toAll), "n2"), []string{"n2"}},
		"of no node":        {on(b.pod("b", "gpu", asAdmin, toAll), "n9"), []string{}},
		"anywhere":          {b.pod("c", "gpu", asAdmin), []string{"n1", "n2", "n3"}},
		"an ordinary pod":   {on(b.pod("d", "gpu"), "n2"), nil},
		"a broken affinity": {broken, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := (&CandidateSlices{SharedDRAManager: fakeDRA{b}}).AdminNodes(tt.pod, b.nodes)
			if (got == nil) != (tt.want == nil) || !got.Equal(sets.New(tt.want...)) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// allocating is a scheduler's view of a node with devices, of which some are allocated.
type allocating struct {
	t     *testing.T
	bed   *bed
	view  *CandidateSlices
	state allocator.Allocated
}

// allocatingManager has the claims of a bed and the slices of a node.
type allocatingManager struct {
	fakeDRA
	listed
}

func (m allocatingManager) ResourceSlices() framework.ResourceSliceLister {
	return listedSlices(m.listed)
}

// devices are what the allocator gives a pod, with a view as the plugin has it, or as kube-scheduler has it; nil for nothing.
func (a allocating) devices(pod *corev1.Pod, fixed bool) []string {
	a.t.Helper()
	var all []*resourceapi.ResourceSlice
	var err error
	list := func() { all, err = a.view.ResourceSlices().ListWithDeviceTaintRules() }
	if fixed {
		a.view.Limited(pod, nil, list)
	} else {
		list()
	}
	if err != nil {
		a.t.Fatal(err)
	}
	inner, err := structured.NewAllocator(a.t.Context(), allocator.Features(), a.state.AllocatedState, fakeClasses{}, all,
		selector.NewCache().CEL)
	if err != nil {
		a.t.Fatal(err)
	}
	claim := a.bed.claims[pod.Name]
	results, err := inner.Allocate(a.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		a.t.Fatal(err)
	}
	var names []string
	for _, r := range results {
		for _, d := range r.Devices.Results {
			names = append(names, d.Device)
		}
	}
	slices.Sort(names)
	return names
}

// TestLimited_AdminAccess: what kube-scheduler's allocator gives a pod that asks for admin access, and what it gives with counters out of
// its sight. For others nothing differs. Where the first column changes, kubernetes/kubernetes#140729 is mended, and Limited need not
// hide counters.
func TestLimited_AdminAccess(t *testing.T) {
	const whole, mig, mps = "gpu-0000-1b-00-0", "gpu-0000-1b-00-0-mig-19-0", "gpu-0000-1b-00-0-mps"
	counted := slicesOf(t, "hgx-h100", "n")
	list := nodeslices.Objects(policy.Apply(&v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{Tiers: []v1alpha1.Tier{v1alpha1.TierExclusive}}}},
		offering(t, "hgx-h100").Node, policy.Capabilities{}), driver, "n")
	var uncounted []*resourceapi.ResourceSlice
	for i := range list.Items {
		uncounted = append(uncounted, &list.Items[i])
	}
	for name, tt := range map[string]struct {
		published []*resourceapi.ResourceSlice
		allocated string // a device that another claim has
		class     string
		change    []func(*resourceapi.ResourceClaimSpec)
		upstream  int // devices that kube-scheduler's allocator gives
		want      int
	}{
		"all GPUs":                            {counted, "", "gpu", []func(*resourceapi.ResourceClaimSpec){asAdmin, toAll}, 8, 8},
		"all, one allocated":                  {counted, whole, "gpu", []func(*resourceapi.ResourceClaimSpec){asAdmin, toAll}, 0, 8},
		"all, a partition allocated":          {counted, mig, "gpu", []func(*resourceapi.ResourceClaimSpec){asAdmin, toAll}, 0, 8},
		"all, a share allocated":              {counted, mps, "gpu", []func(*resourceapi.ResourceClaimSpec){asAdmin, toAll}, 0, 8},
		"all, none counted, one allocated":    {uncounted, whole, "gpu", []func(*resourceapi.ResourceClaimSpec){asAdmin, toAll}, 8, 8},
		"the one that is allocated":           {counted, whole, "gpu", []func(*resourceapi.ResourceClaimSpec){asAdmin, selecting(whole)}, 0, 1},
		"that one, without admin access":      {counted, whole, "gpu", []func(*resourceapi.ResourceClaimSpec){selecting(whole)}, 0, 0},
		"one with a partition, without":       {counted, mig, "gpu", []func(*resourceapi.ResourceClaimSpec){selecting(whole)}, 0, 0},
		"all, without admin access":           {counted, "", "gpu", []func(*resourceapi.ResourceClaimSpec){toAll}, 8, 8},
		"all, without, a partition allocated": {counted, mig, "gpu", []func(*resourceapi.ResourceClaimSpec){toAll}, 0, 0},
		"one of all, without":                 {counted, mig, "gpu", nil, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, "{}")
			a := allocating{t: t, bed: b, state: allocator.NewAllocated(),
				view: &CandidateSlices{SharedDRAManager: allocatingManager{fakeDRA{b}, listed{slices: tt.published}}}}
			if tt.allocated != "" {
				a.state.Add(resourceapi.DeviceRequestAllocationResult{Driver: driver, Pool: "n", Device: tt.allocated})
			}
			before := make([]*resourceapi.ResourceSlice, len(tt.published))
			for i, s := range tt.published {
				before[i] = s.DeepCopy()
			}
			pod := b.pod("x", tt.class, tt.change...)
			if r := b.claims["x"].Spec.Devices.Requests[0].Exactly; r.AllocationMode == "" { // as the API server does
				r.AllocationMode, r.Count = resourceapi.DeviceAllocationModeExactCount, 1
			}
			upstream, got := a.devices(pod, false), a.devices(pod, true)
			if len(upstream) != tt.upstream || len(got) != tt.want {
				t.Errorf("kube-scheduler gives %v, and with the counters out of sight %v; want %d and %d", upstream, got, tt.upstream, tt.want)
			}
			if len(slices.Compact(slices.Clone(got))) != len(got) {
				t.Errorf("a device twice: %v", got)
			}
			if diff := cmp.Diff(before, tt.published); diff != "" {
				t.Errorf("the scheduler's own slices changed (-before +after):\n%s", diff)
			}
		})
	}
}

// selecting selects a device by the PCI address in its name.
func selecting(device string) func(*resourceapi.ResourceClaimSpec) {
	return func(c *resourceapi.ResourceClaimSpec) {
		c.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.attributes["resource.kubernetes.io"].?pciBusID.orValue("") == "` + pciOf(device) + `"`,
		}}}
	}
}

func pciOf(device string) string {
	return device[4:8] + ":" + device[9:11] + ":" + device[12:14] + "." + device[15:16]
}
