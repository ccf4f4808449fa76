// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"bytes"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
)

var (
	start  = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	params = Params{Since: 48 * time.Hour, Step: time.Hour, Margin: 0.2, Seen: 24 * time.Hour}
)

const (
	gibibyte = 1 << 30
	gpu1     = "gpu-0000-1b-00-0"
	gpu2     = "gpu-0000-43-00-0"
)

// bed is nodes of 8 H100 each, claims of pods, and figures.
type bed struct {
	*testing.T
	policies map[string]*v1alpha1.NodePolicy // by node
	claims   []*resourceapi.ResourceClaim
	pods     []*corev1.Pod
	f        Figures
}

func newBed(t *testing.T) *bed {
	return &bed{T: t, policies: map[string]*v1alpha1.NodePolicy{"n1": {}}, f: Figures{Memory: map[Key][]Point{}, Activity: map[Key][]Point{}}}
}

// claim adds a claim of a pod of Deployment web.
func (b *bed) claim(name string, devices ...string) *resourceapi.ResourceClaim {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID(name), Labels: map[string]string{"pod-template-hash": "7c9f"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web-7c9f", Controller: new(true)}}}}
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, CreationTimestamp: metav1.NewTime(start)}}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: p.UID}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: v1alpha1.Group, Pool: "n1", Device: d})
	}
	b.claims, b.pods = append(b.claims, c), append(b.pods, p)
	return c
}

// used adds figures of a claim for some hours: memory in GiB, and activity unless it is negative.
func (b *bed) used(claim, device string, hours int, memory, active float64) {
	key := Key{"ml", claim, device}
	for i := range hours {
		at := start.Add(time.Duration(i) * time.Hour)
		b.f.Memory[key] = append(b.f.Memory[key], Point{at, memory * gibibyte})
		if active >= 0 {
			b.f.Activity[key] = append(b.f.Activity[key], Point{at, active})
		}
	}
}

func (b *bed) advise(p Params) *Advice {
	b.Helper()
	c := NewCluster(v1alpha1.Group, b.claims)
	for name, p := range b.policies {
		inventory, err := models.Load("hgx-h100")
		if err != nil {
			b.Fatal(err)
		}
		list := nodeslices.Objects(policy.Apply(p, inventory, policy.Capabilities{}), v1alpha1.Group, name)
		for i := range list.Items {
			c.AddSlice(&list.Items[i])
		}
	}
	for _, p := range b.pods {
		c.AddPod(p)
	}
	a, err := c.Advise(&b.f, p)
	if err != nil {
		b.Fatal(err)
	}
	if len(a.Problems) > 0 {
		b.Errorf("problems: %q", a.Problems)
	}
	return a
}

// distributed is a figure of Prometheus.
func distributed(p50, p95, most float64) *Figure { return &Figure{&p50, &p95, most} }

func TestAdvise_Freed(t *testing.T) {
	b := newBed(t)
	b.claim("web-1", gpu1)
	b.claim("web-2", gpu2)
	b.used("web-1", gpu1, 30, 5, 0.05)
	b.used("web-2", gpu2, 10, 6, 0.08)
	a := b.advise(params)
	want := []Workload{{
		Namespace: "ml", Workload: "Deployment/web", Claims: 2, Hours: 30,
		Memory: distributed(5*gibibyte, 6*gibibyte, 6*gibibyte), Activity: distributed(0.05, 0.08, 0.08),
		Verdict: Smaller,
	}}
	if diff := cmp.Diff(want, a.Workloads, cmpopts.IgnoreFields(Workload{}, "Asked", "Suffices")); diff != "" {
		t.Errorf("workloads (-want +got):\n%s", diff)
	}
	w := a.Workloads[0]
	if w.Asked.Shape != "gpu" || w.Asked.Multiprocessors != 132 || w.Suffices == nil || w.Suffices.Shape != "1g.10gb" {
		t.Errorf("asked %+v, would do %+v", w.Asked, w.Suffices)
	}
	if a.GPUs != 8 || a.WholeNow != 6 || a.WholeThen != 7 {
		t.Errorf("%d GPUs, %d are whole, then %d, want 8, 6 and 7", a.GPUs, a.WholeNow, a.WholeThen)
	}
	var text bytes.Buffer
	if err := a.Print(&text); err != nil || !strings.Contains(text.String(), "Now 6 of 8 GPUs are free and whole, 7 if all of this were followed.") {
		t.Errorf("got %v, %s", err, &text)
	}
}

func TestAdvise_Verdicts(t *testing.T) {
	one := func(hours int, memory, active float64, device string) func(*bed) {
		return func(b *bed) {
			b.claim("web-1", device)
			if hours > 0 {
				b.used("web-1", device, hours, memory, active)
			}
		}
	}
	second := func(p *v1alpha1.NodePolicy, memory, active float64, device string) func(*bed) {
		return func(b *bed) {
			b.policies["n2"] = p
			b.claim("web-1", device).Status.Allocation.Devices.Results[0].Pool = "n2"
			b.used("web-1", device, 30, memory, active)
		}
	}
	for name, tt := range map[string]struct {
		set      func(*bed)
		verdict  Verdict
		suffices string
	}{
		"small":                  {one(30, 5, 0.05, gpu1), Smaller, "1g.10gb"},
		"more memory":            {one(30, 15, 0.05, gpu1), Smaller, "1g.20gb"},
		"more activity":          {one(30, 5, 0.3, gpu1), Smaller, "3g.40gb"},
		"active enough":          {one(30, 5, 0.9, gpu1), Fits, ""},
		"no activity known":      {one(30, 5, -1, gpu1), Fits, ""},
		"partition":              {one(30, 5, 0.1, gpu1+"-mig-9-0"), Smaller, "1g.10gb"}, // 10 % of 60
		"partition, no activity": {one(30, 5, -1, gpu1+"-mig-15-0"), Fits, ""},           // 26 multiprocessors, and 1g.10gb has 16
		"full":                   {one(30, 78, 0.5, gpu1), Exceeds, ""},
		"hardly seen":            {one(23, 5, 0.05, gpu1), TooLittle, ""},
		"never seen":             {one(0, 0, 0, gpu1), NoFigures, ""},
		"share":                  {one(30, 5, 0.05, gpu1+"-timeslice"), Share, ""},
		"several":                {func(b *bed) { b.claim("web-1", gpu1, gpu2); b.used("web-1", gpu1, 30, 5, 0.05) }, Several, ""},
		"one of two":             {func(b *bed) { one(30, 5, 0.05, gpu1)(b); b.claim("web-2", gpu2) }, NoFigures, ""},
		"activity of one of two": {func(b *bed) { one(30, 5, 0.05, gpu1)(b); b.claim("web-2", gpu2); b.used("web-2", gpu2, 30, 5, -1) }, Fits, ""},
		"one of two is busy":     {func(b *bed) { one(48, 5, 0.05, gpu1)(b); b.claim("web-2", gpu2); b.used("web-2", gpu2, 2, 5, 0.9) }, Fits, ""},
		"an earlier claim's": {func(b *bed) {
			one(48, 5, 0.05, gpu1)(b)
			b.claims[0].CreationTimestamp = metav1.NewTime(start.Add(30 * time.Hour))
		}, TooLittle, ""},
		"alone on its node": {second(exclusive(), 5, 0.05, gpu1), Smaller, "1g.10gb"},
		"a layout":          {second(layout(), 1, 0.02, gpu1+"-mig-9-4"), Smaller, "1g.10gb"},
		"idle, whole GPUs are elsewhere": {func(b *bed) {
			b.policies["n2"] = exclusive()
			one(30, 15, 0, gpu1+"-mig-9-0")(b)
		}, Smaller, "1g.20gb"},
		"figures of other claims": {func(b *bed) { b.claim("web-1", gpu1); b.used("web-0", gpu1, 30, 5, 0.05) }, NoFigures, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			tt.set(b)
			w := b.advise(params).Workloads[0]
			got := ""
			if w.Suffices != nil {
				got = w.Suffices.Shape
			}
			if w.Verdict != tt.verdict || got != tt.suffices {
				t.Errorf("got %s %q (%s), asked %+v, want %s %q", w.Verdict, got, w.Message, w.Asked, tt.verdict, tt.suffices)
			}
		})
	}
}

// exclusive offers whole GPUs alone, and layout two halves of each: neither has counters.
func exclusive() *v1alpha1.NodePolicy {
	return &v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{Tiers: []v1alpha1.Tier{v1alpha1.TierExclusive}}}}
}

func layout() *v1alpha1.NodePolicy {
	return &v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{Tiers: []v1alpha1.Tier{v1alpha1.TierMIG},
		MIG: &v1alpha1.MIGPolicy{Mode: v1alpha1.MIGLayout, Layout: map[string]int32{"3g.40gb": 2}}}}}
}

// Where no partition takes a whole GPU, it is not known what part of one the others are.
func TestAdvise_MultiprocessorsUnknown(t *testing.T) {
	for second, want := range map[*v1alpha1.NodePolicy]string{exclusive(): "no smaller device", layout(): "the multiprocessors are not known"} {
		b := newBed(t)
		b.policies = map[string]*v1alpha1.NodePolicy{"n1": exclusive(), "n2": second}
		b.claim("web-1", gpu1)
		b.used("web-1", gpu1, 30, 5, 0.05)
		if w := b.advise(params).Workloads[0]; w.Verdict != Fits || w.Asked.Multiprocessors != 0 || !strings.Contains(w.Message, want) {
			t.Errorf("got %+v, want %q", w, want)
		}
	}
}

// TestAdvise_NeverBelow: whatever was seen, what would do has no less memory, and is no larger than what there is.
func TestAdvise_NeverBelow(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	smaller := 0
	for range 200 {
		b := newBed(t)
		b.claim("web-1", gpu1)
		most := random.Float64() * 80
		b.used("web-1", gpu1, 40, random.Float64()*most, random.Float64()*0.5)
		b.f.Memory[Key{"ml", "web-1", gpu1}][random.IntN(40)].Value = most * gibibyte
		p := params
		p.Margin = 0
		w := b.advise(p).Workloads[0]
		if w.Suffices == nil {
			continue
		}
		smaller++
		if float64(w.Suffices.Memory) < most*gibibyte || w.Suffices.Memory >= w.Asked.Memory {
			t.Errorf("%f GiB were used, %+v would do in place of %+v", most, w.Suffices, w.Asked)
		}
	}
	if smaller < 50 {
		t.Errorf("only %d of 200 have a smaller device", smaller)
	}
}

func TestFigure(t *testing.T) {
	var points []Point
	for i := range 100 {
		points = append(points, Point{start, float64(100 - i)})
	}
	if diff := cmp.Diff(distributed(50, 95, 100), figure(points)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(distributed(7, 7, 7), figure([]Point{{start, 7}})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if f := figure(nil); f != nil {
		t.Errorf("of nothing: %+v", f)
	}
	odd := []Point{{start, math.NaN()}, {start, math.Inf(1)}, {start, -1}, {start.Add(-1), 3}, {start, 4}}
	if diff := cmp.Diff([]Point{{start, 4}}, after(odd, start)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
