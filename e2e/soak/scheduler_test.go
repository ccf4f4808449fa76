// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/e2e/history"
)

func TestEvictions(t *testing.T) {
	c := newTally(io.Discard, 1)
	pod := func(uid types.UID, name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Name: name}}
	}
	lost := []*corev1.Pod{pod("a", "preempted"), pod("b", "twice"), pod("c", "drained"), pod("d", "vanished"), pod("e", "refused")}
	c.podRefused("refused")
	c.evictions(map[string]string{"a": history.ReasonPreempted, "b": history.ReasonAllocatedTwice, "c": "EvictionByEvictionAPI",
		"other": history.ReasonPreempted}, lost)
	got := c.report(0, nil)
	if len(got.Violations) != 2 || !strings.Contains(got.Violations[0], "drained is gone") || !strings.Contains(got.Violations[1], "vanished is gone") {
		t.Errorf("violations: %q, want those of drained and vanished", got.Violations)
	}
	if got.Preempted != 2 || got.Collided != 1 {
		t.Errorf("%d pods preempted and %d collided, want 2 and 1", got.Preempted, got.Collided)
	}
}
