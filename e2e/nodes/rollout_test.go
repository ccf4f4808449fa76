// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/e2e/release"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// passingPrefix begins the names of pods that come and go.
const passingPrefix = "passing-"

// passTimeout is how long one of them may take to run, also while the plugin of its node is replaced.
const passTimeout = 5 * time.Minute

// pass runs a pod of a tier on a node until it runs, and deletes it.
func (p place) pass(ctx context.Context, name string, tier workload.Tier) error {
	pod := tier.Pod(passingPrefix+name+"-"+tier.Type, tier.Type)
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: p.Name()}
	if err := workload.Create(ctx, env.kube, demo, []runtime.Object{pod}); err != nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	if _, err := env.client.WaitRunning(soon, demo, pod.Name); err != nil {
		return err
	}
	if err := env.kube.CoreV1().Pods(demo).Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete pod %s: %w", pod.Name, err)
	}
	return env.client.WaitGone(ctx, demo, pod.Name)
}

// passers are pods that come and go on every node, one after the other.
type passers struct {
	done    atomic.Bool
	running sync.WaitGroup
	gone    []atomic.Int64 // how many, by place
	failed  chan error     // has room for the one failure that each place can have
}

func startPassers(ctx context.Context) *passers {
	s := &passers{gone: make([]atomic.Int64, len(env.places)), failed: make(chan error, len(env.places))}
	for i, p := range env.places {
		s.running.Go(func() {
			for n := 0; !s.done.Load(); n++ {
				if err := p.pass(ctx, fmt.Sprintf("%d-%d", i, n), workload.Tiers[n%len(workload.Tiers)]); err != nil {
					s.failed <- err
					return
				}
				s.gone[i].Add(1)
			}
		})
	}
	return s
}

// end lets no more pods come, waits until all have gone, and returns what failed.
func (s *passers) end() error {
	s.done.Store(true)
	s.running.Wait()
	var errs []error
	for len(s.failed) > 0 {
		errs = append(errs, <-s.failed)
	}
	return errors.Join(errs...)
}

// counts is how many have gone, by place.
func (s *passers) counts() []int64 {
	now := make([]int64, len(s.gone))
	for i := range s.gone {
		now[i] = s.gone[i].Load()
	}
	return now
}

// waitMore waits until on every node so many more have gone than had before, and returns how many have.
func (s *passers) waitMore(t *testing.T, ctx context.Context, before []int64, more int64) (now []int64) {
	t.Helper()
	err := workload.Until(ctx, "pods to come and go on every node", func(context.Context) (bool, string, error) {
		now = s.counts()
		enough := true
		for i := range now {
			enough = enough && now[i] >= before[i]+more
		}
		return enough || len(s.failed) > 0, fmt.Sprintf("%v have gone, %v had before", now, before), nil
	})
	if err != nil || len(s.failed) > 0 {
		must(t, errors.Join(err, s.end()))
	}
	return now
}

// rollout replaces the plugins while pods of every tier run on every node, and others come and go.
func rollout(t *testing.T, ctx context.Context) {
	before := waitTiers(t, ctx, env.places)
	plugins, err := podsOf(ctx, "plugin")
	must(t, err)
	supervisors, err := podsOf(ctx, "mps")
	must(t, err)
	passing := startPassers(ctx)
	defer func() { _ = passing.end() }() // where this ends early
	first := passing.waitMore(t, ctx, make([]int64, len(env.places)), 1)
	env.helm(t, ctx, env.values(), "upgrade", "cleave", release.Chart(env.release.Source), "--set", "plugin.logVerbosity=5",
		"--wait", "--timeout", "300s")
	waitPods(t, ctx, "plugin", plugins)
	during := passing.counts()
	// A node always has one under way, also while its plugin is replaced. The second from here on begins with the new one.
	passing.waitMore(t, ctx, during, 2)
	must(t, passing.end())
	for i := range during {
		during[i] -= first[i]
	}
	t.Logf("pods that went while the plugins were replaced, by node, besides those under way: %v", during)
	now, err := podsOf(ctx, "mps")
	must(t, err)
	if diff := cmp.Diff(uids(slices.Collect(maps.Values(supervisors))), uids(slices.Collect(maps.Values(now)))); diff != "" {
		t.Errorf("supervisors (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(uids(before), uids(waitTiers(t, ctx, env.places))); diff != "" {
		t.Errorf("pods that were there (-before +after):\n%s", diff)
	}
	noComplaints(t, ctx)
}

// uids are those of pods, with their restarts, sorted.
func uids(pods []corev1.Pod) []string {
	var list []string
	for _, p := range pods {
		list = append(list, fmt.Sprintf("%s on %s, restarted %d times", p.UID, p.Spec.NodeName, p.Status.ContainerStatuses[0].RestartCount))
	}
	slices.Sort(list)
	return list
}

// noComplaints checks that no pod was the subject of a warning, nor its claim.
func noComplaints(t *testing.T, ctx context.Context) {
	t.Helper()
	all, err := env.client.Complaints(ctx, demo, "")
	must(t, err)
	for _, c := range all {
		t.Error(c.Text)
	}
}
