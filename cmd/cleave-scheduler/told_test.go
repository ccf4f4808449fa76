// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Events tell nobody the names of pods of other namespaces.
func TestNamed(t *testing.T) {
	pod := func(namespace string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "secret", UID: "uid-1"}}
	}
	for namespace, want := range map[string]string{"ml": "ml/secret", "other": "uid-1"} {
		if got := named(pod("ml"), pod(namespace)); got != want {
			t.Errorf("in an Event of namespace %s: %q, want %q", namespace, got, want)
		}
	}
}
