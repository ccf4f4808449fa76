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

// The first of the labels that a node has names its policy.
func TestNodeOf_PolicyLabels(t *testing.T) {
	const other = "nvidia.com/mig.config"
	labels := []string{v1alpha1.PolicyLabel, other}
	for name, tt := range map[string]struct {
		has  map[string]string
		want Node
	}{
		"none":   {nil, Node{}},
		"first":  {map[string]string{v1alpha1.PolicyLabel: "a"}, Node{Policy: "a"}},
		"second": {map[string]string{other: "all-balanced"}, Node{Policy: "all-balanced", PolicyLabel: other}},
		"both":   {map[string]string{v1alpha1.PolicyLabel: "a", other: "b"}, Node{Policy: "a"}},
		"empty":  {map[string]string{v1alpha1.PolicyLabel: "", other: "b"}, Node{Policy: "b", PolicyLabel: other}},
	} {
		got, ok := nodeOf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: tt.has}}, labels)
		if diff := cmp.Diff(tt.want, got); diff != "" || !ok {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
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

func address(t *testing.T, text string) gpu.PCIAddress {
	t.Helper()
	pci, err := gpu.ParsePCIAddress(text)
	if err != nil {
		t.Fatal(err)
	}
	return pci
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
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx, func(err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.errs = append(w.errs, err)
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	synctest.Wait()
	return w
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
		must := func(_ any, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
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
		first := Device{"gpu.nvidia.com", "gpu-0", address(t, "0000:1b:00.0")}
		w.want("another driver", true, Node{}, first)
		must(slices.Update(t.Context(), otherSlice("b", "net.example", [2]string{"nic", "0000:1c:00.0"}), metav1.UpdateOptions{}))
		w.want("devices get addresses", true, Node{}, first, Device{"net.example", "nic", address(t, "0000:1c:00.0")})
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
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.FollowDaemonSet(ctx) })
		defer wg.Wait()
		defer cancel()
		sets := client.AppsV1().DaemonSets("cleave-system")
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
	})
}

// The news of the end may come after the question.
func TestWatcher_AwaitDaemonSetGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "cleave-system", Name: "cleave-plugin"}})
		s := NewWatcher(client, "gpu.cleave.dev", "node-1", "cleave-system/cleave-plugin", func() {})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		wg.Go(func() { s.FollowDaemonSet(ctx) })
		synctest.Wait()
		gone := make(chan bool, 1)
		wg.Go(func() { gone <- s.AwaitDaemonSetGone(ctx) })
		synctest.Wait()
		if err := client.AppsV1().DaemonSets("cleave-system").Delete(ctx, "cleave-plugin", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if !<-gone {
			t.Error("got not gone")
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
		client := fake.NewClientset(node)
		w := NewWatcher(client, "gpu.cleave.dev", "node-1", "", func() {})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { w.Run(ctx, func(error) {}) })
		defer running.Wait()
		defer cancel()
		nodes := client.CoreV1().Nodes()
		want := func(step string, want bool) {
			t.Helper()
			synctest.Wait()
			select {
			case <-w.Recreated():
				if !want {
					t.Errorf("%s: the node counts as made anew", step)
				}
			default:
				if want {
					t.Errorf("%s: the node counts as the same", step)
				}
			}
		}
		if err := w.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		node = node.DeepCopy()
		node.Labels = map[string]string{"changed": "true"}
		if _, err := nodes.Update(ctx, node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		want("updated", false)
		if err := nodes.Delete(ctx, node.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		want("deleted", false)
		for _, uid := range []types.UID{"second", "third"} {
			node.UID = uid
			if _, err := nodes.Create(ctx, node, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			want("created", true)
			if err := nodes.Delete(ctx, node.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	})
}
