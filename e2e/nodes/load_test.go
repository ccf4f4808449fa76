// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// app is an application with pods of a tier, which cleave-scheduler places.
func app(name string, tier workload.Tier, replicas int32) *appsv1.Deployment {
	pod := tier.Pod("", tier.Type)
	pod.Spec.SchedulerName = "cleave-scheduler"
	return workload.Deployment(name, replicas, map[string]string{appLabel: name}, pod)
}

// createApp creates an application, and the template of its claims.
func createApp(ctx context.Context, d *appsv1.Deployment, tier workload.Tier) error {
	if err := workload.Create(ctx, env.kube, demo, []runtime.Object{tier.Template(tier.Type)}); err != nil {
		return err
	}
	if _, err := env.kube.AppsV1().Deployments(demo).Create(ctx, d, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create application %s: %w", d.Name, err)
	}
	return nil
}

const (
	// loadSeed determines which applications come and go; when they do depends on the machine.
	loadSeed = 1
	// loadPause is between two changes: a restart takes some seconds, and some are to come to their end.
	loadPause = 3 * time.Second
	// loadApps is how many there are at a time, at most.
	loadApps = 6
)

// passing are the tiers of applications that come and go, with how many pods each has at most: as many as leave gaps where they go.
var passing = []struct {
	tier workload.Tier
	most int32
}{{workload.Tiers[0], 2}, {workload.Tiers[1], 5}, {small2g, 3}, {workload.Tiers[2], 4}, {workload.Tiers[3], 2}}

// small2g are partitions of another size than the smallest.
var small2g = workload.Tier{Type: "mig-2g", Class: "mig-2g.20gb.cleave.dev"}

// load is applications that come and go.
type load struct {
	enough  context.CancelFunc
	running sync.WaitGroup
	random  *rand.Rand
	// apps are those that are there, most is how many pods each has at most.
	apps []string
	most map[string]int32
	// came, went and scaled count what was done.
	came, went, scaled int
	err                error
}

func startLoad(ctx context.Context) *load {
	ctx, enough := context.WithCancel(ctx)
	l := &load{enough: enough, random: rand.New(rand.NewPCG(loadSeed, 0)), most: map[string]int32{}}
	l.running.Go(func() {
		tick := time.NewTicker(loadPause)
		defer tick.Stop()
		for l.err == nil {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				l.err = l.change(context.WithoutCancel(ctx))
			}
		}
	})
	return l
}

// change lets an application come or go, or changes its number of pods.
func (l *load) change(ctx context.Context) error {
	deployments := env.kube.AppsV1().Deployments(demo)
	kind := l.random.IntN(3)
	switch {
	case len(l.apps) < 2 || kind == 0 && len(l.apps) < loadApps:
		name, p := fmt.Sprintf("passing-%d", l.came), passing[l.random.IntN(len(passing))]
		l.apps, l.most[name] = append(l.apps, name), p.most
		l.came++
		d := app(name, p.tier, l.replicas(name))
		if l.random.IntN(2) == 0 { // where others come to be, too, and stay when it goes
			d.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: env.places[l.random.IntN(len(env.places))].Name()}
		}
		if err := createApp(ctx, d, p.tier); err != nil {
			return err
		}
	case kind == 1:
		i := l.random.IntN(len(l.apps))
		name := l.apps[i]
		l.apps = slices.Delete(l.apps, i, i+1)
		l.went++
		if err := deployments.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("delete application %s: %w", name, err)
		}
	default:
		name := l.apps[l.random.IntN(len(l.apps))]
		l.scaled++
		patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, l.replicas(name))
		if _, err := deployments.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("scale application %s: %w", name, err)
		}
	}
	return nil
}

// replicas is a number of pods for an application.
func (l *load) replicas(app string) int32 { return 1 + l.random.Int32N(l.most[app]) }

// end lets no more come or go. Those that are there stay.
func (l *load) end() error {
	l.enough()
	l.running.Wait()
	return l.err
}

// leave takes away those that are there.
func (l *load) leave(t *testing.T, ctx context.Context) {
	t.Helper()
	for _, name := range l.apps {
		must(t, env.kube.AppsV1().Deployments(demo).Delete(ctx, name, metav1.DeleteOptions{}))
	}
	must(t, settled(ctx))
}

// settled waits until all pods of the applications run, and nothing else has devices.
func settled(ctx context.Context) error {
	return workload.Until(ctx, "all pods to run", func(ctx context.Context) (bool, string, error) {
		deployments, err := env.kube.AppsV1().Deployments(demo).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		want := 0
		for i := range deployments.Items {
			want += int(*deployments.Items[i].Spec.Replicas)
		}
		list, err := env.kube.CoreV1().Pods(demo).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		var others []string
		for i := range list.Items {
			if p := &list.Items[i]; p.DeletionTimestamp != nil || !hasCondition(p, corev1.PodReady, "") {
				others = append(others, p.Name+": "+workload.Describe(p))
			}
		}
		claims, err := env.kube.ResourceV1().ResourceClaims(demo).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		return len(others) == 0 && len(list.Items) == want && len(claims.Items) == want,
			fmt.Sprintf("%d of %d pods, %d claims; %s", len(list.Items), want, len(claims.Items), strings.Join(others, "\n")), nil
	})
}
