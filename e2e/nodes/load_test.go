// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// app is a Deployment of a tier, whose pods cleave-scheduler places.
func app(name string, tier workload.Tier, replicas int32, isNever bool) *appsv1.Deployment {
	labels := map[string]string{appLabel: name}
	pod := tier.Pod("", tier.Type)
	pod.Spec.RestartPolicy, pod.Spec.SchedulerName = corev1.RestartPolicyAlways, "cleave-scheduler"
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{appLabel: name}}, Spec: pod.Spec},
	}}
	if isNever {
		d.Spec.Template.Labels[v1alpha1.RepackKey] = v1alpha1.RepackNever
	}
	return d
}

const (
	// loadSeed determines which applications come and go; when they do depends on the machine.
	loadSeed = 1
	// loadPause is between two changes: a restart takes some seconds, and some are to come to their end.
	loadPause = 4 * time.Second
	// loadApps is how many there are at a time, at most.
	loadApps = 5
)

// load is applications that come and go.
type load struct {
	enough     context.CancelFunc
	running    sync.WaitGroup
	random     *rand.Rand
	names      []string
	came, went int
	err        error
}

func startLoad(ctx context.Context) *load {
	ctx, enough := context.WithCancel(ctx)
	l := &load{enough: enough, random: rand.New(rand.NewPCG(loadSeed, 0))}
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

// change lets an application come or go.
func (l *load) change(ctx context.Context) error {
	if len(l.names) == loadApps || len(l.names) > 1 && l.random.IntN(2) == 0 {
		i := l.random.IntN(len(l.names))
		name := l.names[i]
		l.names = slices.Delete(l.names, i, i+1)
		l.went++
		if err := env.kube.AppsV1().Deployments(demo).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("delete application %s: %w", name, err)
		}
		return nil
	}
	name := fmt.Sprintf("passing-%d", l.came)
	l.names = append(l.names, name)
	l.came++
	tier := workload.Tiers[l.random.IntN(len(workload.Tiers))]
	if err := createApp(ctx, name, tier, 1+int32(l.random.IntN(3)), false); err != nil {
		return fmt.Errorf("create application %s: %w", name, err)
	}
	return nil
}

// end lets no more come or go. Those that are there stay.
func (l *load) end() error {
	l.enough()
	l.running.Wait()
	return l.err
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
