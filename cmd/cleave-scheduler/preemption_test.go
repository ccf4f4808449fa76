// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"
	scheduler "k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// victimOf are pods that go together, and have run for some minutes each.
func victimOf(t *testing.T, kind framework.EntityKeyType, minutes int, names ...string) *preemption.DomainVictim {
	t.Helper()
	var pods []framework.PodInfo
	for _, name := range names {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		pod.Status.StartTime = &metav1.Time{Time: time.Unix(1e9, 0).Add(-time.Duration(minutes) * time.Minute)}
		info, err := scheduler.NewPodInfo(pod)
		if err != nil {
			t.Fatal(err)
		}
		pods = append(pods, info)
	}
	v, err := preemption.NewVictim(pods, 0, kind)
	if err != nil {
		t.Fatal(err)
	}
	return &preemption.DomainVictim{Victim: v}
}

// TestVictimOrder: of pods of one priority, those that GPUPacking has chosen go, unless a whole group would go with one of them.
func TestVictimOrder(t *testing.T) {
	for name, tt := range map[string]struct {
		chosen []types.UID
		want   string
	}{
		"one pod":               {[]types.UID{"old"}, "[gang-0 new old]"},
		"a pod of a group":      {[]types.UID{"gang-1"}, "[gang-0 old new]"},
		"also a pod of a group": {[]types.UID{"old", "gang-0"}, "[gang-0 old new]"},
		"none":                  {nil, "[gang-0 old new]"},
	} {
		t.Run(name, func(t *testing.T) {
			possible := []*preemption.DomainVictim{victimOf(t, framework.PodKeyType, 1, "new"),
				victimOf(t, framework.PodGroupKeyType, 0, "gang-0", "gang-1"), victimOf(t, framework.PodKeyType, 9, "old")}
			chosen, _ := followed(possible, tt.chosen)
			victimOrder(possible, chosen)
			var got []string
			for _, v := range possible {
				got = append(got, v.Pods()[0].GetPod().Name)
			}
			if fmt.Sprint(got) != tt.want {
				t.Errorf("spared first to last are %v, want %s", got, tt.want)
			}
		})
	}
}
