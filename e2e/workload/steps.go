// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Step is part of a life that a test goes through.
type Step struct {
	Name string
	Run  func(*testing.T, context.Context)
}

// RunSteps runs steps each of which needs those before, and gives each of them so much time. A step that comes to its end with
// errors shows the diagnosis.
func RunSteps(t *testing.T, timeout time.Duration, diagnosis func() string, steps []Step) {
	t.Helper()
	for _, step := range steps {
		ok := t.Run(step.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			step.Run(t, ctx)
			if t.Failed() {
				t.Log(diagnosis())
			}
		})
		if !ok {
			t.Fatal("the steps after this one cannot run")
		}
	}
}

// Diagnosis is what a person wants to see of a test that failed: pods and warnings of namespaces, and of the first one the
// ends of its pods' logs.
func (c Client) Diagnosis(namespaces ...string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var b strings.Builder
	for i, ns := range namespaces {
		pods, err := c.Kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for k := range pods.Items {
			p := &pods.Items[k]
			fmt.Fprintf(&b, "pod %s on %s: %s\n", p.Name, p.Spec.NodeName, Describe(p))
			if i == 0 {
				log, _ := c.Cluster.PodLogs(ctx, ns, p.Name, p.Spec.Containers[0].Name) // it may not have started
				lines := strings.Split(strings.TrimSpace(log), "\n")
				b.WriteString(strings.Join(lines[max(0, len(lines)-25):], "\n") + "\n")
			}
		}
		events, err := c.Kube.CoreV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning})
		if err != nil {
			return err.Error()
		}
		for _, e := range events.Items {
			fmt.Fprintf(&b, "event on %s: %s: %s\n", e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
	return b.String()
}
