// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/history"
	"github.com/cleave-dra/cleave/e2e/recording"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// Pods of all tiers come and go, and the plugin is killed as they start and while they run: what happened is recorded, and
// nothing of it must not have.
func TestHistory_OnCluster(t *testing.T) {
	ctx, s := newSpace(t)
	file := filepath.Join(t.TempDir(), "history.jsonl")
	r, err := recording.Start(ctx, env.cluster, env.node, file)
	s.must(err)
	stopped := false
	t.Cleanup(func() { // other tests need a plugin without a tap
		if !stopped {
			_, err := r.Stop(context.WithoutCancel(ctx))
			s.must(err)
		}
	})
	tiers := map[string]func(name string) []runtime.Object{
		"whole":     func(name string) []runtime.Object { return gpuPod(name, 1) },
		"mig":       func(name string) []runtime.Object { return claimPod(name, workload.ClaimSpec("mig.cleave.dev", 1)) },
		"timeslice": func(name string) []runtime.Object { return claimPod(name, shareSpec(timeSliceClass)) },
		"mps":       func(name string) []runtime.Object { return mpsPod(name, shareSpec(mpsClass)) },
	}
	pods := 0
	for i, disturb := range []func(context.Context){
		func(context.Context) {},
		func(ctx context.Context) { s.must(env.node.Kill()); s.plugin.start(ctx) },
	} {
		var names []string
		for _, tier := range []string{"whole", "mig", "timeslice", "mps"} {
			name := fmt.Sprintf("%s-%d", tier, i)
			names = append(names, name)
			s.create(ctx, tiers[tier](name)...)
		}
		disturb(ctx)
		for _, name := range names {
			pod := s.pods.running(ctx, name)
			if strings.HasPrefix(name, "mps") { // else it may be deleted before its program has an MPS server
				s.pods.served(ctx, pod)
			}
		}
		disturb(ctx)
		for _, name := range names {
			s.must(env.kube.CoreV1().Pods(s.name).Delete(ctx, name, metav1.DeleteOptions{}))
		}
		for _, name := range names {
			s.pods.gone(ctx, name)
		}
		pods += len(names)
	}
	s.plugin.waitRecords(ctx, env.node)
	h, err := r.Stop(ctx)
	stopped = true
	s.must(err)
	checkHistory(s, h, pods)
}

// checkHistory checks that a history has so many pods from their claims' allocation to the end of their containers, and
// nothing that must not have happened.
func checkHistory(s *space, h history.History, pods int) {
	s.Helper()
	prepared, unprepared, started, ended := map[string]bool{}, map[string]bool{}, 0, 0
	kinds := map[history.Kind]int{}
	for _, e := range h.Events {
		kinds[e.Fact.Kind()]++
		switch f := e.Fact.(type) {
		case history.Return:
			if f.Error == "" {
				map[history.Method]map[string]bool{history.Prepare: prepared, history.Unprepare: unprepared}[f.Method][f.Claim] = true
			}
		case history.Container:
			if f.State == history.ContainerStarted {
				started++
			} else {
				ended++
			}
		}
	}
	s.Logf("%d events in %s: %v", len(h.Events), h.End(), kinds)
	if len(prepared) != pods || len(unprepared) != pods || started != pods || ended != pods {
		s.Errorf("recorded: %d claims prepared, %d unprepared, %d containers started, %d ended; want %d of each",
			len(prepared), len(unprepared), started, ended, pods)
	}
	if lacks := history.Lacks(h, history.Limits{PodsUnseen: !cluster.PodGroups(env.cluster)}); len(lacks) > 0 {
		s.Errorf("the history has nothing of %q: the rules do not see them", lacks)
	}
	for _, v := range history.Check(h, history.Limits{}) {
		s.Errorf("%s", v)
		for _, e := range v.Events {
			s.Logf("\t%s %s %+v", e.At, e.Fact.Kind(), e.Fact)
		}
	}
}
