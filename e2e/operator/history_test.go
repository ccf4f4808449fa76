// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// what happened, by the API server.
const (
	movedOn = "moved on"     // the operator moved the node to the state
	left    = "driver left"  // the driver's pod is to end
	ready   = "driver ready" // a driver's pod is ready
	came    = "pod came"     // a pod with a claim is on the node
	asked   = "pod asked"    // it is to end
	went    = "pod went"     // its containers have ended
)

// event is something that happened on a node. Those of all kinds of objects are in the order of their resource versions, which the API
// server takes from one store.
type event struct {
	version uint64
	node    string
	what    string
	// of is the name of the pod, or the state.
	of string
}

// recorder watches nodes and pods.
type recorder struct {
	mu     sync.Mutex
	events []event
	seen   map[event]bool
	last   map[string]string // state by node
	nodes  uint64            // version of the last node that was seen
	pods   uint64            // and of the last pod
	errs   []error
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// record begins with what is there.
func record(t *testing.T, ctx context.Context) *recorder {
	t.Helper()
	r := &recorder{seen: map[event]bool{}, last: map[string]string{}}
	ctx, r.cancel = context.WithCancel(ctx)
	core := env.client.Kube.CoreV1()
	nodes, err := core.Nodes().List(ctx, metav1.ListOptions{})
	must(t, err)
	pods, err := core.Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	must(t, err)
	for i := range nodes.Items {
		r.node(&nodes.Items[i])
	}
	for i := range pods.Items {
		r.pod(&pods.Items[i], false)
	}
	must(t, r.follow(ctx, nodes.ResourceVersion, func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		return core.Nodes().Watch(ctx, o)
	}))
	must(t, r.follow(ctx, pods.ResourceVersion, func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		return core.Pods(metav1.NamespaceAll).Watch(ctx, o)
	}))
	return r
}

// follow notes all that comes after a version.
func (r *recorder) follow(ctx context.Context, version string, do cache.WatchFuncWithContext) error {
	w, err := watchtools.NewRetryWatcherWithContext(ctx, version, &cache.ListWatch{WatchFuncWithContext: do})
	if err != nil {
		return fmt.Errorf("watch from version %s: %w", version, err)
	}
	r.wg.Go(func() {
		for e := range w.ResultChan() {
			r.mu.Lock()
			switch o := e.Object.(type) {
			case *corev1.Node:
				r.nodes = r.version(o.ResourceVersion)
				r.node(o)
			case *corev1.Pod:
				r.pods = r.version(o.ResourceVersion)
				r.pod(o, e.Type == watch.Deleted)
			default:
				r.errs = append(r.errs, fmt.Errorf("a watch ended with %v", e))
			}
			r.mu.Unlock()
		}
	})
	return nil
}

// stop returns what happened, in order, up to changes of a node and of a pod that it makes.
func (r *recorder) stop(t *testing.T, ctx context.Context, pod *corev1.Pod) []event {
	t.Helper()
	core, patch := env.client.Kube.CoreV1(), []byte(`{"metadata":{"annotations":{"history":"ends"}}}`)
	node, err := core.Nodes().Patch(ctx, pod.Spec.NodeName, types.MergePatchType, patch, metav1.PatchOptions{})
	must(t, err)
	pod, err = core.Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	must(t, err)
	must(t, workload.Until(ctx, "the end of the history", func(context.Context) (bool, string, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		seen := r.nodes >= r.version(node.ResourceVersion) && r.pods >= r.version(pod.ResourceVersion)
		return seen, fmt.Sprintf("node %d, pod %d", r.nodes, r.pods), errors.Join(r.errs...)
	}))
	r.cancel()
	r.wg.Wait()
	slices.SortStableFunc(r.events, func(a, b event) int { return cmp.Compare(a.version, b.version) })
	return r.events
}

func (r *recorder) node(n *corev1.Node) {
	if state := n.Labels[stateLabel]; r.last[n.Name] != state {
		r.last[n.Name] = state
		r.note(n.ResourceVersion, event{node: n.Name, what: movedOn, of: state})
	}
}

// once notes something that happens to a pod one time.
func (r *recorder) once(p *corev1.Pod, what string) {
	e := event{node: p.Spec.NodeName, what: what, of: p.Name}
	if !r.seen[e] {
		r.seen[e] = true
		r.note(p.ResourceVersion, e)
	}
}

func (r *recorder) note(version string, e event) {
	e.version = r.version(version)
	r.events = append(r.events, e)
}

func (r *recorder) version(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		r.errs = append(r.errs, fmt.Errorf("read a resource version: %w", err))
	}
	return n
}

func (r *recorder) pod(p *corev1.Pod, deleted bool) {
	switch {
	case p.Spec.NodeName == "":
	case p.Labels["app"] == driverApp:
		if p.DeletionTimestamp != nil || deleted {
			r.once(p, left)
		} else if len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Ready {
			r.once(p, ready)
		}
	case len(p.Spec.ResourceClaims) > 0:
		r.once(p, came)
		if p.DeletionTimestamp != nil {
			r.once(p, asked)
		}
		if deleted || ended(p) {
			r.once(p, went)
		}
	}
}
