// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/e2e/history"
)

func TestPods(t *testing.T) {
	r := record(t)
	p := endings{recorder: r, ending: map[types.UID]bool{}}
	pod := func(uid types.UID, deleted bool) *corev1.Pod {
		of := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Namespace: "ns", Name: "pod-" + string(uid)}}
		if deleted {
			of.DeletionTimestamp = new(metav1.Time)
		}
		return of
	}
	p.changed(pod("a", false))
	p.changed(pod("a", true))
	p.changed(pod("a", true))
	p.changed(pod("forced", false))
	p.deleted(pod("forced", false)) // nobody waited for it
	p.deleted(pod("a", true))
	want := []history.Fact{
		history.Pod{UID: "a", Namespace: "ns", Name: "pod-a", State: history.PodEnding},
		history.Pod{UID: "a", Namespace: "ns", Name: "pod-a", State: history.PodGone},
	}
	if diff := cmp.Diff(want, factsOf(t, r)); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
}
