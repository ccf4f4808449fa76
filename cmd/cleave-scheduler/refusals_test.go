// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"

	"github.com/cleave-dra/cleave/pkg/scheduler/gpupacking"
)

// counted are the values of a counter so far, by the values of its labels.
func counted(t *testing.T, name string) map[string]float64 {
	t.Helper()
	registerMetrics()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			all[strings.Join(values, " ")] += m.GetCounter().GetValue()
		}
	}
	return all
}

// onNode is a node of victims.
type onNode struct {
	preemption.Candidate
	name string
}

func (o onNode) Name() string { return o.name }

// preemptor is a pod that others are evicted for.
type preemptor struct {
	preemption.ExecutorPreemptor
	uid types.UID
}

func (p preemptor) UID() types.UID { return p.uid }

// TestRefusals: after the API server refused to delete a victim, the pod is tried later. Nobody was evicted, and what was is counted.
func TestRefusals(t *testing.T) {
	p := &preemptionPlugin{plugins: newPlugins(), rules: &gpupacking.Rules{}, later: newLater(nil)}
	executor := &preemption.Executor{PreemptPod: func(_ context.Context, _ preemption.Candidate, _ preemption.ExecutorPreemptor,
		victim *corev1.Pod, _ string) (bool, error) {
		if victim.Name == "protected" {
			return false, errors.New("admission policy denied request")
		}
		return false, nil
	}}
	p.refusals.watch(executor)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "urgent"}}
	before := counted(t, "cleave_scheduler_preemption_victims_total")[""]
	for _, step := range []struct {
		victim, says string
		victims      float64
	}{{"low", "", 1}, {"protected", "refused to delete a pod on node n1", 1}, {"", "", 1}, {"low", "", 2}} {
		if step.victim != "" {
			_, err := executor.PreemptPod(t.Context(), onNode{name: "n1"}, preemptor{uid: pod.UID},
				&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: step.victim}}, devicePreemption)
			if (err != nil) != (step.says != "") {
				t.Errorf("victim %s: %v", step.victim, err)
			}
		}
		clear(p.later.pods)
		a := &attempt{preemptionPlugin: p, devices: &candidatePlugin{view: view{&gpupacking.CandidateSlices{}, &tracker{}}},
			refusedOn: p.refusals.take(pod.UID)}
		none, status := a.refused(t.Context(), pod)
		if ends := none != nil && none.Mode() == framework.ModeOverride; ends != (step.says != "") {
			t.Errorf("after victim %q, the nomination ends: %t", step.victim, ends)
		}
		if (status.Code() == framework.Unschedulable) != (step.says != "") || !strings.Contains(status.Message(), step.says) {
			t.Errorf("after victim %q: %v", step.victim, status)
		}
		if _, later := p.later.pods[pod.UID]; later != (step.says != "") {
			t.Errorf("after victim %q, the pod is tried later: %t", step.victim, later)
		}
		if got := counted(t, "cleave_scheduler_preemption_victims_total")[""] - before; got != step.victims {
			t.Errorf("after victim %q, %v are counted, want %v", step.victim, got, step.victims)
		}
	}
}
