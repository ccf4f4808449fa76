// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"bytes"
	"fmt"
	"os/exec"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRepack_Held: what some of several victims left is held for the pod that they were evicted for. No pod is restarted to take its place:
// its replacement would not get it.
func TestRepack_Held(t *testing.T) {
	p := newPriorityBed(t, "n1", "n2")
	b := &repackBed{bed: p.bed, classOf: func(string) string { return "mig-1g.10gb.cleave.dev" }, replaced: map[string]bool{}}
	b.startScheduler("{}")
	b.addPods("other", "gpu.cleave.dev", 7, priority("high"), onNode("n1"))
	b.addPods("low", "mig-1g.10gb.cleave.dev", 7, priority("low"), graceful, onNode("n1"))
	b.scheduled(14)
	b.addPods("urgent", "gpu.cleave.dev", 1, priority("high"), onNode("n1"))
	victims := p.ending(7)
	for _, v := range victims[:6] {
		p.gone(v)
		p.free(v)
	}
	b.addReplica("web-00", "mig-1g.10gb.cleave.dev")
	b.running("web-00")
	setRunning(b, "web-00")
	before := b.place("web-00")
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), bin("cleave"), "repack", "--apply", "--replacement-timeout", "30s", "--kubeconfig", b.kubeconfig)
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	replaced := 0
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for done := false; !done; {
		select {
		case err := <-ended:
			t.Logf("it ends with %v", err)
			done = true
		case <-tick.C:
			for _, pod := range b.pods() {
				switch {
				case pod.Name[:3] != "web":
				case pod.DeletionTimestamp != nil && !b.replaced[pod.Name]:
					b.replaced[pod.Name] = true
					replaced++
					b.addReplica(fmt.Sprintf("web-%02d", replaced), "mig-1g.10gb.cleave.dev")
				case pod.DeletionTimestamp != nil:
					b.end(pod.Name)
				case pod.Spec.NodeName != "" && pod.Status.Phase != corev1.PodRunning:
					setRunning(b, pod.Name)
				}
			}
		}
	}
	if replaced > 0 {
		t.Errorf("web-00 was evicted from %s; repack says:\n%s", before, out.String())
	}
}

func setRunning(b *repackBed, name string) {
	b.t.Helper()
	pod, err := b.kube.CoreV1().Pods(namespace).Get(b.t.Context(), name, metav1.GetOptions{})
	must(b.t, err)
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
	must(b.t, errOf(b.kube.CoreV1().Pods(namespace).UpdateStatus(b.t.Context(), pod, metav1.UpdateOptions{})))
}
