// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/nvml/simulated"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/publish"
)

// rulesOfTransitions are what a GPU may be handed out as in the tests.
var rulesOfTransitions = []string{
	"", "exclude: true", "tiers: [exclusive]", "tiers: [mig]", "tiers: [timeSlice], timeSlice: {shares: 8}", "tiers: [timeSlice, mps]",
	"mig: {layout: {1g.10gb: 7}}", "mig: {layout: {3g.40gb: 2}}", "tiers: [mig, exclusive], mig: {profiles: [1g.10gb, 2g.20gb]}", "tiers: []",
}

// randomPolicy has a random rule for each of eight GPUs.
func randomPolicy(t *testing.T, random *rand.Rand) *v1alpha1.NodePolicy {
	t.Helper()
	text := policyHead + "rules:\n"
	for i := range 8 {
		text += fmt.Sprintf("- {match: {indexes: [%d]}, %s}\n", i, rulesOfTransitions[random.IntN(len(rulesOfTransitions))])
	}
	p, err := v1alpha1.DecodeNodePolicy([]byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return p
}

// claimSome picks devices that claims could hold beside those that they hold.
func claimSome(random *rand.Rand, node *policy.Node, held []gpu.Shape) []gpu.Shape {
	held = slices.DeleteFunc(slices.Clone(held), func(gpu.Shape) bool { return random.IntN(3) == 0 })
	for i := range node.GPUs {
		shapes := node.Shapes(&node.GPUs[i])
		if len(shapes) == 0 || random.IntN(2) == 0 {
			continue
		}
		s := shapes[random.IntN(len(shapes))]
		if !node.Offer(s.GPU).IsWithdrawn(s) && !slices.ContainsFunc(held, s.Overlaps) && s.FitsBeside(slices.DeleteFunc(slices.Clone(held), func(h gpu.Shape) bool { return h.GPU.PCI != s.GPU.PCI })) {
			held = append(held, s)
		}
	}
	return held
}

// heldShapes tells what claims that have shapes hold of a GPU.
func heldShapes(held []gpu.Shape) func(g *gpu.GPU) gpu.Held {
	return func(g *gpu.GPU) gpu.Held {
		var has gpu.Held
		for _, s := range held {
			switch {
			case s.GPU.PCI != g.PCI:
			case s.IsPartition():
				has.Places = append(has.Places, s.Place())
			case s.IsWhole():
				has.Whole = true
			case s.Share == gpu.MPS:
				has.MPS = true
			default:
				has.TimeSlice = true
			}
		}
		return has
	}
}

// checkSlices fails unless slices are ones that the helper takes, and have all devices that are held.
func checkSlices(slices []resourceslice.Slice, held []string) error {
	sets, devices := map[string]bool{}, map[string]bool{}
	for _, s := range slices {
		for _, c := range s.SharedCounters {
			if sets[c.Name] {
				return fmt.Errorf("counters %s are there twice", c.Name)
			}
			sets[c.Name] = true
		}
	}
	for _, s := range slices {
		for _, d := range s.Devices {
			if devices[d.Name] {
				return fmt.Errorf("device %s is there twice", d.Name)
			}
			devices[d.Name] = true
			for _, c := range d.ConsumesCounters {
				if !sets[c.CounterSet] {
					return fmt.Errorf("device %s consumes counters of %s, which are not there", d.Name, c.CounterSet)
				}
			}
		}
	}
	for _, name := range held {
		if !devices[name] {
			return fmt.Errorf("device %s is held and not there", name)
		}
	}
	return nil
}

// checkingHelper takes slices as the helper does, checks them, and has the API server list them at once.
type checkingHelper struct {
	held  []string
	calls int
	now   []resourceslice.Slice
	err   error
}

func (h *checkingHelper) PublishResources(_ context.Context, resources resourceslice.DriverResources) error {
	h.calls++
	h.now = resources.Pools["node-1"].Slices
	h.err = errors.Join(h.err, checkSlices(h.now, h.held))
	return nil
}

// seen is what the API server has.
func (h *checkingHelper) seen() []ownSlice {
	var seen []ownSlice
	for i, s := range h.now {
		seen = append(seen, ownSlice{i, len(h.now), contentOf(s.Devices, s.SharedCounters)})
	}
	return seen
}

// transitions leads a node through random policies, claims and conflicts, and gives each what is to be published then with the
// devices that are held before and after.
func transitions(t *testing.T, random *rand.Rand, steps int, step func(want resourceslice.DriverResources, held []string)) {
	t.Helper()
	session, err := simulated.Open(t.Context(), "hgx-h100")
	if err != nil {
		t.Fatal(err)
	}
	var held []gpu.Shape
	var before *policy.Node
	for range steps {
		node := policy.Apply(randomPolicy(t, random), session.Node(), policy.Means{Held: heldShapes(held)})
		if before != nil && random.IntN(2) == 0 {
			leave(node, before)
		}
		var names []string
		for _, s := range held {
			names = append(names, s.Name())
		}
		published, taints := node, []publish.Taint(nil)
		if random.IntN(6) == 0 {
			published, taints = besideOthers(node, heldShapes(held))
		}
		step(publish.Resources(published, "node-1", publish.View{Taints: taints}), names)
		if published == node {
			held = claimSome(random, node, held)
		}
		before = node
	}
}

func TestWhatClaimsHoldIsPublishedAtEachStepFromOnePolicyToAnother(t *testing.T) {
	h := &checkingHelper{}
	p, _ := newPublisher()
	p.to, p.seen = h, h.seen
	oneByOneChanges := 0
	transitions(t, rand.New(rand.NewPCG(1, 2)), 100, func(want resourceslice.DriverResources, held []string) {
		before := h.calls
		h.held = held
		p.want(want)
		p.advance(t.Context())
		if h.calls-before > 1 {
			oneByOneChanges++
		}
	})
	if h.err != nil {
		t.Error(h.err)
	}
	if oneByOneChanges == 0 {
		t.Error("no change was made one slice at a time: the test shows nothing of those")
	}
}

func TestSlicesChangeOneByOneOnlyWhereNothingIsTwiceOrNowhereMeanwhile(t *testing.T) {
	devices := func(names ...string) resourceslice.Slice {
		return resourcesOf(names).Pools["node-1"].Slices[0]
	}
	counters := func(names ...string) resourceslice.Slice {
		var s resourceslice.Slice
		for _, name := range names {
			s.SharedCounters = append(s.SharedCounters, resourceapi.CounterSet{Name: name})
		}
		return s
	}
	tests := map[string]struct {
		was, want []resourceslice.Slice
		yes       bool
	}{
		"the first time":             {nil, []resourceslice.Slice{devices("a")}, false},
		"a taint":                    {[]resourceslice.Slice{devices("a"), devices("b")}, []resourceslice.Slice{devices("a!"), devices("b")}, true},
		"others in their place":      {[]resourceslice.Slice{devices("a"), devices("b")}, []resourceslice.Slice{devices("c"), devices("d")}, true},
		"one more slice":             {[]resourceslice.Slice{devices("a")}, []resourceslice.Slice{devices("a"), devices("b")}, false},
		"one less":                   {[]resourceslice.Slice{devices("a"), devices("b")}, []resourceslice.Slice{devices("a")}, false},
		"a device comes to another":  {[]resourceslice.Slice{devices("a", "b"), devices("c")}, []resourceslice.Slice{devices("a"), devices("b", "c")}, false},
		"a device comes to an empty": {[]resourceslice.Slice{devices("a"), devices("b")}, []resourceslice.Slice{devices(), devices("a")}, false},
		"the same counters":          {[]resourceslice.Slice{counters("x"), devices("a")}, []resourceslice.Slice{counters("x"), devices("b")}, true},
		"counters go":                {[]resourceslice.Slice{counters("x", "y"), devices("a")}, []resourceslice.Slice{counters("x"), devices("b")}, false},
		"counters come":              {[]resourceslice.Slice{counters("x"), devices("a")}, []resourceslice.Slice{counters("x", "y"), devices("b")}, false},
	}
	for name, tt := range tests {
		if got := oneByOne(tt.was, tt.want); got != tt.yes {
			t.Errorf("%s: got %t, want %t", name, got, tt.yes)
		}
	}
}

// apiServer is a fake one that checks the slices after each write.
type apiServer struct {
	*fake.Clientset
	mu     sync.Mutex
	held   []string
	writes int
	err    error
}

func newAPIServer(t *testing.T) *apiServer {
	a := &apiServer{Clientset: fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "1"}})}
	names := 0
	a.PrependReactor("*", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if action.GetVerb() == "create" { // the fake one makes no names
			slice := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
			names++
			slice.Name = fmt.Sprintf("%s%d", slice.GenerateName, names)
		}
		handled, object, err := clienttesting.ObjectReaction(a.Tracker())(action)
		if verb := action.GetVerb(); verb != "list" && verb != "get" {
			a.check(t)
		}
		return handled, object, err
	})
	return a
}

// check looks at the slices as the scheduler does: it goes by those of the newest generation, and allocates nothing while they
// are not as many as they say.
func (a *apiServer) check(t *testing.T) {
	a.writes++
	objects, err := a.Tracker().List(resourceapi.SchemeGroupVersion.WithResource("resourceslices"), resourceapi.SchemeGroupVersion.WithKind("ResourceSlice"), "")
	if err != nil {
		t.Error(err)
		return
	}
	var pool []resourceapi.ResourceSlice
	for _, s := range objects.(*resourceapi.ResourceSliceList).Items {
		if len(pool) > 0 && s.Spec.Pool.Generation > pool[0].Spec.Pool.Generation {
			pool = nil
		}
		if len(pool) == 0 || s.Spec.Pool.Generation == pool[0].Spec.Pool.Generation {
			pool = append(pool, s)
		}
	}
	if len(pool) == 0 || int64(len(pool)) != pool[0].Spec.Pool.ResourceSliceCount {
		return
	}
	var have []resourceslice.Slice
	for _, s := range pool {
		have = append(have, resourceslice.Slice{Devices: s.Spec.Devices, SharedCounters: s.Spec.SharedCounters})
	}
	a.err = errors.Join(a.err, checkSlices(have, a.held))
}

// seen are the slices, as the plugin watches them.
func (a *apiServer) seen() []ownSlice {
	objects, err := a.Tracker().List(resourceapi.SchemeGroupVersion.WithResource("resourceslices"), resourceapi.SchemeGroupVersion.WithKind("ResourceSlice"), "")
	if err != nil {
		return nil
	}
	var seen []ownSlice
	for _, s := range objects.(*resourceapi.ResourceSliceList).Items {
		if own, ours := ownSliceOf(&s, "gpu.cleave.dev", "node-1"); ours {
			seen = append(seen, own)
		}
	}
	return seen
}

// controller hands slices to the controller that the helper has.
type controller struct{ *resourceslice.Controller }

func (c controller) PublishResources(_ context.Context, resources resourceslice.DriverResources) error {
	c.Update(&resources)
	return nil
}

func TestNoWriteOfTheHelperLeavesAPoolThatLacksWhatClaimsHold(t *testing.T) {
	type change struct {
		want resourceslice.DriverResources
		held []string
	}
	var changes []change
	transitions(t, rand.New(rand.NewPCG(3, 4)), 25, func(want resourceslice.DriverResources, held []string) {
		changes = append(changes, change{want, held})
	})
	synctest.Test(t, func(t *testing.T) {
		a := newAPIServer(t)
		ctx, cancel := context.WithCancel(t.Context())
		c, err := resourceslice.StartController(ctx, resourceslice.Options{
			DriverName: "gpu.cleave.dev", KubeClient: a, Owner: &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: "node-1", UID: "1"},
			Resources: &resourceslice.DriverResources{}, ErrorHandler: func(_ context.Context, err error, msg string) { t.Errorf("%s: %v", msg, err) },
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cancel()
			c.Stop()
		})
		p, _ := newPublisher()
		p.to, p.seen = controller{c}, a.seen
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		wg.Go(func() { p.run(ctx) })
		for _, change := range changes {
			a.mu.Lock()
			a.held = change.held
			a.mu.Unlock()
			p.want(change.want)
			for range 20 { // as its slices arrive
				signal(p.wake)
				synctest.Wait()
				<-time.After(time.Millisecond)
			}
			time.Sleep(time.Second) //nolint:forbidigo // of the bubble
			synctest.Wait()
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.err != nil {
			t.Error(a.err)
		}
		if a.writes < len(changes) {
			t.Errorf("%d writes for %d changes: the helper does not follow", a.writes, len(changes))
		}
	})
}
