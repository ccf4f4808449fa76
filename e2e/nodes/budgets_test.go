// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// appLabel names the application that a pod is of.
const appLabel = "app"

// evictedByAPI is the reason of the condition that the Eviction API sets.
const evictedByAPI = "EvictionByEvictionAPI"

// budgets follows applications with PodDisruptionBudgets whose pods nothing but evictions disturbs.
type budgets struct {
	// replicas and least are how many pods of an application there are, and are to be available at least.
	replicas, least map[string]int
	available       map[string]map[types.UID]bool
	// complete are the applications that have had all of their pods.
	complete map[string]bool
	// evicted are the pods that were evicted, by UID.
	evicted map[types.UID]*corev1.Pod
	broken  []string
}

func newBudgets(replicas, least map[string]int) *budgets {
	return &budgets{replicas: replicas, least: least, available: map[string]map[types.UID]bool{}, complete: map[string]bool{},
		evicted: map[types.UID]*corev1.Pod{}}
}

// see notes a change of a pod, in the order of the API server.
func (b *budgets) see(kind apiwatch.EventType, p *corev1.Pod) {
	app := p.Labels[appLabel]
	if hasCondition(p, corev1.DisruptionTarget, evictedByAPI) {
		b.evicted[p.UID] = p
	}
	if b.available[app] == nil {
		b.available[app] = map[types.UID]bool{}
	}
	if kind != apiwatch.Deleted && p.DeletionTimestamp == nil && hasCondition(p, corev1.PodReady, "") {
		b.available[app][p.UID] = true
	} else {
		delete(b.available[app], p.UID)
	}
	now := len(b.available[app])
	b.complete[app] = b.complete[app] || b.replicas[app] > 0 && now >= b.replicas[app]
	if least, ok := b.least[app]; ok && b.complete[app] && now < least {
		b.broken = append(b.broken, fmt.Sprintf("%d pods of %s were available, %d are to be, once %s was %s", now, app, least, p.Name, kind))
	}
}

// hasCondition reports whether a pod has a condition, for a reason unless that is "".
func hasCondition(p *corev1.Pod, kind corev1.PodConditionType, reason string) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue && (reason == "" || c.Reason == reason)
	})
}

// follow sees the pods there are and all changes of them. What it returns ends that, once.
func (b *budgets) follow(t *testing.T, ctx context.Context) (end func()) {
	t.Helper()
	list, err := env.kube.CoreV1().Pods(demo).List(ctx, metav1.ListOptions{})
	must(t, err)
	for i := range list.Items {
		b.see(apiwatch.Added, &list.Items[i])
	}
	watch, err := env.kube.CoreV1().Pods(demo).Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range watch.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok { // the watch has ended
				return
			}
			b.see(event.Type, pod)
		}
	}()
	return sync.OnceFunc(func() {
		select {
		case <-done:
			t.Error("the watch of pods has ended before: nobody knows what followed")
		default:
		}
		watch.Stop()
		<-done
	})
}

// TestBudgets: a budget is broken when fewer pods than it wants are available, by an eviction or by force, and not before all were.
func TestBudgets(t *testing.T) {
	type change struct {
		kind   apiwatch.EventType
		pod    string
		ready  bool
		ending bool
	}
	ready := func(pod string) change { return change{apiwatch.Modified, pod, true, false} }
	evicted := func(pod string) change { return change{apiwatch.Modified, pod, true, true} }
	begin := []change{{apiwatch.Added, "a", false, false}, ready("a"), ready("b"), ready("c")}
	for name, tt := range map[string]struct {
		changes []change
		broken  int
		evicted int
	}{
		"before all are there":         {begin[:2], 0, 0},
		"one after the other":          {append(begin, evicted("a"), change{apiwatch.Deleted, "a", false, true}, ready("d"), evicted("b")), 0, 2},
		"two at once":                  {append(begin, evicted("a"), evicted("b")), 1, 2},
		"before the replacement is up": {append(begin, evicted("a"), change{apiwatch.Added, "d", false, false}, evicted("b"), ready("d")), 1, 2},
		"by force":                     {append(begin, change{apiwatch.Deleted, "a", true, false}, change{apiwatch.Deleted, "b", true, false}), 1, 0},
		"not ready":                    {append(begin, change{apiwatch.Modified, "a", false, false}, change{apiwatch.Modified, "b", false, false}), 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBudgets(map[string]int{"web": 3}, map[string]int{"web": 2})
			for _, c := range tt.changes {
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: c.pod, UID: types.UID(c.pod), Labels: map[string]string{appLabel: "web"}}}
				if c.ready {
					p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
				}
				if c.ending {
					p.DeletionTimestamp = new(metav1.Now())
					p.Status.Conditions = append(p.Status.Conditions,
						corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: evictedByAPI})
				}
				b.see(c.kind, p)
			}
			if diff := cmp.Diff([]int{tt.broken, tt.evicted}, []int{len(b.broken), len(b.evicted)}); diff != "" {
				t.Errorf("broken and evicted (-want +got):\n%s\n%v", diff, b.broken)
			}
		})
	}
}
