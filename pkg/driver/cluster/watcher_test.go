// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// nodeObject is the Node of the tests, with a policy label unless it is empty, and a capacity of pairs such as
// "nvidia.com/gpu", "8".
func nodeObject(label string, capacity ...string) *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
		Status:     corev1.NodeStatus{Capacity: corev1.ResourceList{"cpu": resource.MustParse("64")}, Allocatable: corev1.ResourceList{}},
	}
	if label != "" {
		node.Labels = map[string]string{v1alpha1.PolicyLabel: label}
	}
	for i := 0; i+1 < len(capacity); i += 2 {
		node.Status.Capacity[corev1.ResourceName(capacity[i])] = resource.MustParse(capacity[i+1])
	}
	return node
}

// otherSlice is a slice of another driver, with devices by name and PCI address; one without an address has none.
func otherSlice(name, driver string, devices ...[2]string) *resourceapi.ResourceSlice {
	node := "node-1"
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{Driver: driver, NodeName: &node}}
	for _, d := range devices {
		device := resourceapi.Device{Name: d[0]}
		if d[1] != "" {
			device.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"resource.kubernetes.io/pciBusID": {StringValue: &d[1]}}
		}
		slice.Spec.Devices = append(slice.Spec.Devices, device)
	}
	return slice
}

// watcher is a Watcher that follows a fake API server, inside a synctest bubble.
type watcher struct {
	*Watcher
	t      *testing.T
	client *fake.Clientset
	// changes counts the changes reported since it was looked at, errs what failed.
	changes atomic.Int32
	mu      sync.Mutex
	errs    []error
}

func newWatcher(t *testing.T, client *fake.Clientset) *watcher {
	w := &watcher{t: t, client: client}
	w.Watcher = NewWatcher(client, "gpu.cleave.dev", "node-1", "", func() { w.changes.Add(1) })
	run(t, func(ctx context.Context) {
		w.Run(ctx, func(err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.errs = append(w.errs, err)
		})
	})
	return w
}

// bubble runs a subtest in a synctest bubble.
func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// run runs functions until the test ends or stop, inside a synctest bubble, and returns once they wait for something.
func run(t *testing.T, all ...func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, f := range all {
		wg.Go(func() { f(ctx) })
	}
	stop = func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	synctest.Wait()
	return stop
}

// must ends a test whose call of an API server fails.
func must(t *testing.T) func(_ any, err error) {
	return func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// want checks what is known, and whether a change was reported since the last look.
func (w *watcher) want(step string, reported bool, node Node, others ...Device) {
	w.t.Helper()
	synctest.Wait()
	if n := w.changes.Swap(0); (n > 0) != reported {
		w.t.Errorf("%s: %d changes reported, want any: %t", step, n, reported)
	}
	if diff := cmp.Diff(node, w.State().Node); diff != "" {
		w.t.Errorf("%s: facts of the node (-want +got):\n%s", step, diff)
	}
	if diff := cmp.Diff(others, w.State().Others); diff != "" {
		w.t.Errorf("%s: devices of others (-want +got):\n%s", step, diff)
	}
}

func TestWatcher_State(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(t, fake.NewClientset(nodeObject("training")))
		nodes, slices := w.client.CoreV1().Nodes(), w.client.ResourceV1().ResourceSlices()
		must := must(t)
		update := func(node *corev1.Node) {
			t.Helper()
			must(nodes.Update(t.Context(), node, metav1.UpdateOptions{}))
		}
		if err := w.Wait(t.Context()); err != nil || !w.Known() {
			t.Fatalf("wait: %v, known: %t", err, w.Known())
		}
		training := Node{Policy: "training"}
		w.want("at the start", true, training)
		beat := nodeObject("training")
		beat.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}}
		update(beat)
		w.want("the kubelet says that it lives", false, training)
		update(nodeObject("inference", "cpu", "64"))
		w.want("another label", true, Node{Policy: "inference"})
		update(nodeObject("", "nvidia.com/mig-1g.10gb", "7", "nvidia.com/gpu", "8", "nvidia.com/hostdev", "4", "amd.com/gpu", "1"))
		plugin := Node{PluginResources: []PluginResource{{"nvidia.com/gpu", "8"}, {"nvidia.com/mig-1g.10gb", "7"}}}
		w.want("a device plugin", true, plugin)
		must(nil, nodes.Delete(t.Context(), "node-1", metav1.DeleteOptions{}))
		w.want("the Node is gone for a moment", true, plugin)
		must(nodes.Create(t.Context(), nodeObject("", "nvidia.com/gpu", "0"), metav1.CreateOptions{}))
		w.want("the device plugin is gone", true, Node{})

		// The selectors that the real API server goes by are not seen by the fake one.
		must(slices.Create(t.Context(), otherSlice("ours", "gpu.cleave.dev", [2]string{"gpu-0", "0000:1b:00.0"}), metav1.CreateOptions{}))
		w.want("slices of our own", false, Node{})
		must(slices.Create(t.Context(), otherSlice("b", "net.example", [2]string{"nic", ""}, [2]string{"odd", "x"}), metav1.CreateOptions{}))
		w.want("devices without an address", false, Node{})
		must(slices.Create(t.Context(), otherSlice("a", "gpu.nvidia.com", [2]string{"gpu-0", "0000:1b:00.0"}), metav1.CreateOptions{}))
		first := Device{"gpu.nvidia.com", "gpu-0", gpu.PCIAddress{Bus: 0x1b}}
		w.want("another driver", true, Node{}, first)
		must(slices.Update(t.Context(), otherSlice("b", "net.example", [2]string{"nic", "0000:1c:00.0"}), metav1.UpdateOptions{}))
		w.want("devices get addresses", true, Node{}, first, Device{"net.example", "nic", gpu.PCIAddress{Bus: 0x1c}})
		must(nil, slices.Delete(t.Context(), "a", metav1.DeleteOptions{}))
		must(nil, slices.Delete(t.Context(), "b", metav1.DeleteOptions{}))
		w.want("they go", true, Node{})
		if len(w.errs) > 0 {
			t.Errorf("got errors %v", w.errs)
		}
	})
}

func TestWatcher_FieldSelectors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(t, fake.NewClientset(nodeObject("")))
		got := map[string]string{}
		for _, action := range w.client.Actions() {
			switch a := action.(type) {
			case clienttesting.ListActionImpl:
				got["list "+a.Resource.Resource] = a.ListOptions.FieldSelector
			case clienttesting.WatchActionImpl:
				got["watch "+a.Resource.Resource] = a.ListOptions.FieldSelector
			}
		}
		const others = "spec.nodeName=node-1"
		want := map[string]string{
			"list nodes": "metadata.name=node-1", "watch nodes": "metadata.name=node-1",
			"list resourceslices": others, "watch resourceslices": others,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("field selectors (-want +got):\n%s", diff)
		}
	})
}

func TestWatcher_NodeMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(t, fake.NewClientset())
		known := make(chan error, 1)
		go func() { known <- w.Wait(t.Context()) }()
		synctest.Wait()
		if w.Known() || len(known) > 0 {
			t.Fatal("a Node that is not there counts as known")
		}
		if _, err := w.client.CoreV1().Nodes().Create(t.Context(), nodeObject("training"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := <-known; err != nil || w.State().Node.Policy != "training" {
			t.Errorf("got %v, %+v, want the Node's label", err, w.State().Node)
		}
	})
}

func TestWatcher_Forbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, refused := fake.NewClientset(nodeObject("training")), errors.New("forbidden")
		var allowed atomic.Bool
		client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) { return !allowed.Load(), nil, refused })
		w := newWatcher(t, client)
		w.mu.Lock()
		errs := slices.Clone(w.errs)
		w.mu.Unlock()
		if len(errs) == 0 || !errors.Is(errs[0], refused) || !strings.Contains(errs[0].Error(), "read Node node-1") || w.Known() {
			t.Errorf("got errors %v, known %t, want one that names the Node", errs, w.Known())
		}
		allowed.Store(true)
		if err := w.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.want("once it may", true, Node{Policy: "training"})
	})
}

func TestWatcher_ContextCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := NewWatcher(fake.NewClientset(), "d", "n", "", func() {}).Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestWatcher_DaemonSetGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "cleave-system", Name: "cleave-plugin"}}
		other := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "cleave-system", Name: "other"}}
		client := fake.NewClientset(set, other)
		s := NewWatcher(client, "gpu.cleave.dev", "node-1", "cleave-system/cleave-plugin", func() {})
		if s.DaemonSetGone() {
			t.Error("gone before it was looked for")
		}
		run(t, s.FollowDaemonSet)
		ctx, sets := t.Context(), client.AppsV1().DaemonSets("cleave-system")
		awaited := make(chan bool, 1) // the news of the end may come after the question
		go func() { awaited <- s.AwaitDaemonSetGone(ctx) }()
		for _, step := range []struct {
			what string
			do   func() error
			want bool
		}{
			{"there", func() error { return nil }, false},
			{"another is deleted", func() error { return sets.Delete(ctx, "other", metav1.DeleteOptions{}) }, false},
			{"deleted", func() error { return sets.Delete(ctx, "cleave-plugin", metav1.DeleteOptions{}) }, true},
			{"installed again", func() error { _, err := sets.Create(ctx, set, metav1.CreateOptions{}); return err }, false},
		} {
			if err := step.do(); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if got := s.DaemonSetGone(); got != step.want {
				t.Errorf("%s: got gone %t, want %t", step.what, got, step.want)
			}
			short, end := context.WithTimeout(ctx, time.Second)
			if got := s.AwaitDaemonSetGone(short); got != step.want {
				t.Errorf("%s: waited: got gone %t, want %t", step.what, got, step.want)
			}
			end()
		}
		if !<-awaited {
			t.Error("asked before: got not gone")
		}
	})
}

func TestIsGPUResource(t *testing.T) {
	for name, want := range map[string]bool{
		"nvidia.com/gpu": true, "nvidia.com/gpu.shared": true, "nvidia.com/mig-3g.40gb": true, "nvidia.com/mig-1g.10gb.me": true, "nvidia.com/gpumem": true,
		"nvidia.com/hostdev": false, "nvidia.com/cx7": false, "nvidia.com/GA102GL_A10": false, "amd.com/gpu": false, "gpu": false,
		"nvidia.com.example/gpu": false, "nvidia.com/migrate": false,
	} {
		if got := isGPUResource(name); got != want {
			t.Errorf("%s: got %t, want %t", name, got, want)
		}
	}
}

func TestWatcher_NodeRecreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := nodeObject("")
		node.UID = "first"
		w := newWatcher(t, fake.NewClientset(node))
		nodes, must := w.client.CoreV1().Nodes(), must(t)
		want := func(step string, want bool) {
			t.Helper()
			synctest.Wait()
			got := false
			select {
			case <-w.Recreated():
				got = true
			default:
			}
			if got != want {
				t.Errorf("%s: the node counts as made anew: %t, want %t", step, got, want)
			}
		}
		node = node.DeepCopy()
		node.Labels = map[string]string{"changed": "true"}
		must(nodes.Update(t.Context(), node, metav1.UpdateOptions{}))
		want("updated", false)
		must(nil, nodes.Delete(t.Context(), node.Name, metav1.DeleteOptions{}))
		want("deleted", false)
		for _, uid := range []types.UID{"second", "third"} {
			node.UID = uid
			must(nodes.Create(t.Context(), node, metav1.CreateOptions{}))
			want("created", true)
			must(nil, nodes.Delete(t.Context(), node.Name, metav1.DeleteOptions{}))
		}
	})
}

// A load balancer that closes connections to an API server that is away gives no errors, and that says that it was.
func TestWatcher_BrokenOff(t *testing.T) {
	for name, tt := range map[string]struct {
		after time.Duration
		want  bool
	}{
		"broken off":      {time.Minute, true},
		"over as usually": {6 * time.Minute, false},
	} {
		bubble(t, name, func(t *testing.T) {
			client := fake.NewClientset(nodeObject("training"))
			streams := make(chan *watch.FakeWatcher, 10)
			client.PrependWatchReactor("nodes", func(clienttesting.Action) (bool, watch.Interface, error) {
				stream := watch.NewFake()
				streams <- stream
				return true, stream, nil
			})
			w := newWatcher(t, client)
			<-time.After(tt.after)
			(<-streams).Stop()
			<-streams // the next one
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			got := slices.ContainsFunc(w.errs, func(err error) bool { return errors.Is(err, errWatchEnded) })
			if got != tt.want {
				t.Errorf("reported: %v, want it to be: %t", w.errs, tt.want)
			}
		})
	}
}
