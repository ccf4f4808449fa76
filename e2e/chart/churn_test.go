// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/cleave-dra/cleave/e2e/workload"
)

const (
	// churnPods is how many pods come and go at least.
	churnPods    = 200
	churnAtATime = 14
	// churnTimeout bounds the life of all pods of the churn together, and podTimeout that of one.
	churnTimeout, podTimeout = 15 * time.Minute, 4 * time.Minute
	// churnPrefix begins the names of all that the churn makes.
	churnPrefix = "churn-"
)

// wish is one way to ask for GPUs: a class, for a claim from a template, or an extended resource.
type wish struct {
	name, class, extended string
	// sees is a pattern of device nodes that the container must have.
	sees string
}

var wishes = []wish{
	{name: "whole", class: "gpu.cleave.dev", sees: "/dev/nvidia[0-9]*"},
	{name: "small", class: "mig-1g.10gb.cleave.dev", sees: "/dev/nvidia-caps/*"},
	{name: "share", class: "timeslice.cleave.dev", sees: "/dev/nvidia[0-9]*"},
	{name: "mps", class: "mps.cleave.dev"}, // sees its MPS server
	{name: "larger", class: "mig-2g.20gb.cleave.dev", sees: "/dev/nvidia-caps/*"},
	{name: "extended-whole", extended: "nvidia.com/gpu", sees: "/dev/nvidia[0-9]*"},
	{name: "extended-small", extended: "nvidia.com/mig-1g.10gb", sees: "/dev/nvidia-caps/*"},
	{name: "extended-share", extended: "nvidia.com/gpu.shared", sees: "/dev/nvidia[0-9]*"},
}

// template is what the claims of a wish are made from.
func (w wish) template() *resourceapi.ResourceClaimTemplate {
	return workload.Template(churnPrefix+w.name, workload.ClaimSpec(w.class, 1))
}

// pod makes a wish. Its container looks at its devices and stays, until it is given another command.
func (w wish) pod(name string) *corev1.Pod {
	if w.extended == "" {
		return workload.Pod(churnPrefix+name, churnPrefix+w.name)
	}
	pod := workload.Pod(churnPrefix+name, "")
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceName(w.extended): resource.MustParse("1")}
	return pod
}

// passing is a pod of the churn. Two of three end by themselves, and fail if they do not see what they asked for.
func passing(i int) (pod *corev1.Pod, ends bool) {
	w := wishes[i%len(wishes)]
	pod, ends = w.pod(fmt.Sprintf("%03d-%s", i, w.name)), i/len(wishes)%3 < 2
	switch {
	case w.class == "mps.cleave.dev" && ends:
		workload.RunCUDA(pod, "--hold=false")
	case w.class == "mps.cleave.dev":
		workload.RunCUDA(pod)
	case ends:
		pod.Spec.Containers[0].Command = []string{"/bin/sh", "-c", "ls " + w.sees + " && sleep 1"}
	}
	return pod, ends
}

// watchPods keeps the pods of the namespace demo at hand until ctx ends.
func watchPods(ctx context.Context) cache.Store {
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(env.kube.CoreV1().RESTClient(), "pods", demo, fields.Everything()),
		ObjectType:    &corev1.Pod{}, Handler: cache.ResourceEventHandlerFuncs{},
	})
	go controller.RunWithContext(ctx)
	return store
}

// pass creates a pod, waits until it has done what it is for, deletes it and waits until it is gone.
func pass(ctx context.Context, pods cache.Store, pod *corev1.Pod, ends bool) error {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	if err := workload.Create(ctx, env.kube, demo, []runtime.Object{pod}); err != nil {
		return err
	}
	want := corev1.PodRunning
	if ends {
		want = corev1.PodSucceeded
	}
	err := workload.Until(ctx, fmt.Sprintf("pod %s to be %s", pod.Name, want), func(context.Context) (bool, string, error) {
		object, there, err := pods.GetByKey(demo + "/" + pod.Name)
		if err != nil || !there {
			return false, "not there yet", err
		}
		now := object.(*corev1.Pod)
		if now.Status.Phase == corev1.PodFailed || now.Status.Phase == corev1.PodSucceeded && !ends {
			return false, "", errors.New("it ended: " + workload.Describe(now))
		}
		return now.Status.Phase == want, workload.Describe(now), nil
	})
	if err != nil {
		return err
	}
	if err := env.kube.CoreV1().Pods(demo).Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete pod %s: %w", pod.Name, err)
	}
	return workload.Until(ctx, "pod "+pod.Name+" to go", func(context.Context) (bool, string, error) {
		_, there, err := pods.GetByKey(demo + "/" + pod.Name)
		return !there, "there", err
	})
}

// churn lets pods pass, some at a time, and counts those that are through. After churnPods of them there are more until the
// plugin is upgraded, so that all of the upgrades happen while pods pass.
func churn(ctx context.Context, through *atomic.Int64, rolled *atomic.Bool) error {
	pods, next := watchPods(ctx), make(chan int)
	var mu sync.Mutex
	var failed []error
	var workers sync.WaitGroup
	for range churnAtATime {
		workers.Go(func() {
			for i := range next {
				pod, ends := passing(i)
				if err := pass(ctx, pods, pod, ends); err != nil {
					mu.Lock()
					failed = append(failed, err)
					mu.Unlock()
				}
				through.Add(1)
			}
		})
	}
	hasFailed := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(failed) > 0
	}
	// Pods that fail at once, for one after ctx has ended, would be without number.
	for i := 0; i < churnPods || !rolled.Load() && !hasFailed(); i++ {
		next <- i
	}
	close(next)
	workers.Wait()
	return errors.Join(failed...)
}

// waitNoClaims waits until neither the API server nor the node knows of a claim in use.
func waitNoClaims(t *testing.T, ctx context.Context) {
	t.Helper()
	must(t, env.client.WaitNoClaims(ctx, metav1.NamespaceAll))
	must(t, env.WaitHolds(ctx, 0))
}

// rollPlugin upgrades to this release while pods pass and waits until one new plugin is all there is.
func rollPlugin(t *testing.T, ctx context.Context, verbosity string) {
	t.Helper()
	old := podOf(t, ctx, "plugin")
	helmOn(t, env.values(false), "upgrade", "cleave", chartDir, "--set", "plugin.logVerbosity="+verbosity, "--wait", "--timeout", helmTimeout)
	onlyPod(t, ctx, "plugin", otherThan(old), ready, ofTag("e2e"), func(p *corev1.Pod) bool {
		return slices.Contains(p.Spec.Containers[0].Args, "--v="+verbosity)
	})
}

// TestRelease_UpgradeDuringChurn lets many short pods of all tiers come and go while the plugin is replaced twice: that of the
// release before by this one, and this one by itself.
func TestRelease_UpgradeDuringChurn(t *testing.T) {
	ctx, cancel := context.WithCancel(tests.Bound(t, churnTimeout))
	havePrevious(t)
	defer removeAfterFailure(t)
	installPrevious(t, ctx, env.values(false))
	for _, w := range wishes {
		if w.class != "" {
			create(t, ctx, w.template())
		}
	}
	var through atomic.Int64
	var rolled atomic.Bool
	var churning sync.WaitGroup
	var failed error
	start := time.Now()
	churning.Go(func() { failed = churn(ctx, &through, &rolled) })
	defer func() { cancel(); churning.Wait() }() // where this ends early
	seen := map[string]bool{}
	var last time.Time // upgrade, of this release by itself
	for i, verbosity := range []string{"5", "6"} {
		from := int64(20 + i*60)
		must(t, workload.Until(ctx, fmt.Sprintf("%d pods to be through", from), func(ctx context.Context) (bool, string, error) {
			kinds, err := env.Holdings(ctx, 0)
			for kind, of := range kinds {
				seen[kind] = seen[kind] || len(of) > 0
			}
			return through.Load() >= from, fmt.Sprint(through.Load()), err
		}))
		last = time.Now()
		rollPlugin(t, ctx, verbosity)
		t.Logf("upgrade %d: began after %d pods, was through after %d", i+1, from, through.Load())
		if through.Load() <= from {
			t.Error("no pod was through while the plugin was upgraded")
		}
	}
	rolled.Store(true)
	churning.Wait()
	must(t, failed)
	t.Logf("%d pods in %s", through.Load(), time.Since(start).Round(time.Second))
	want := map[string]bool{"records": true, "CDI specs": true, "partitions": true, "compute modes": true, "MPS processes": true}
	if !maps.Equal(want, seen) {
		t.Errorf("meanwhile the node held %v, want all of %v", seen, want)
	}
	waitNoClaims(t, ctx)
	noTrouble(t, ctx, last)
	uninstall(t, ctx)
}

// noTrouble checks that nobody complained of the churn, but, until this release upgraded itself, of calls that the plugin of the
// release before did not answer when it was replaced.
func noTrouble(t *testing.T, ctx context.Context, byItself time.Time) {
	t.Helper()
	all, err := env.client.Complaints(ctx, demo, churnPrefix)
	must(t, err)
	for _, c := range all {
		// A socket that is closed with something unread in it resets the connection.
		cut := strings.Contains(c.Text, "error reading from server:") &&
			(strings.Contains(c.Text, "EOF") || strings.Contains(c.Text, "connection reset by peer"))
		if !c.At.Before(byItself) || !cut {
			t.Error(c.Text)
		}
	}
}

// removeAfterFailure ends the release and its pods where a test could not, so that the next can install.
func removeAfterFailure(t *testing.T) {
	if !t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	t.Log(diagnosis())
	now := int64(0)
	_ = env.kube.CoreV1().Pods(demo).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
	_ = env.client.WaitGone(ctx, demo, "")
	_, _ = env.Helm(ctx, "", "uninstall", "cleave", "--wait", "--timeout", helmTimeout)
}
