// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// repackBed runs cleave repack --apply, and does what kubelets and controllers do meanwhile, which are not here.
type repackBed struct {
	*bed
	// account is the kubeconfig file of the chart's account for it.
	account string
	// classOf is that of a pod's replacement.
	classOf func(pod string) string
	// replaced are the pods that have a replacement.
	replaced map[string]bool
	// budget is whether there is a PodDisruptionBudget, exhausted since when it allows nothing.
	budget    bool
	exhausted time.Time
	// down is how many pods were not ready at once.
	down int
}

func newRepackBed(t *testing.T) *repackBed {
	t.Helper()
	b := &repackBed{bed: newBed(t, "n1", "n2", "n3"), classOf: classOf, replaced: map[string]bool{}}
	b.startScheduler("{}")
	b.applyChart("repack.enabled=true", "repack")
	b.account = b.kubeconfigOf("cleave-repack")
	return b
}

// two has a pod on n1 and one on n2: one of them is to move, and its node is to be left.
func (b *repackBed) two() {
	b.t.Helper()
	for i, node := range []string{"n1", "n2"} {
		for _, other := range []string{"n1", "n2", "n3"} {
			b.cordon(other, other != node)
		}
		b.addReplica(fmt.Sprintf("web-%02d", 5*i), scattered[0])
		b.scheduled(i + 1)
	}
	for _, node := range []string{"n1", "n2", "n3"} {
		b.cordon(node, false)
	}
	b.tick()
}

// apply runs the program until it ends, or is killed because a condition holds.
func (b *repackBed) apply(kill func() bool, flags ...string) (output string, err error) {
	b.t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(b.t.Context(), bin("cleave"), append([]string{"repack", "--apply", "--kubeconfig", b.account}, flags...)...)
	cmd.Stdout, cmd.Stderr = &out, &out
	must(b.t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return out.String(), err
		case <-tick.C:
			if kill != nil && kill() {
				must(b.t, cmd.Process.Kill())
				return out.String(), <-ended
			}
			b.tick()
		}
	}
}

func (b *repackBed) pods() []corev1.Pod {
	b.t.Helper()
	pods, err := b.kube.CoreV1().Pods(namespace).List(b.t.Context(), metav1.ListOptions{})
	must(b.t, err)
	return pods.Items
}

// tick starts pods of the set that have a node, replaces those that end at the first look, as a ReplicaSet does, and ends them at the next.
func (b *repackBed) tick() {
	b.t.Helper()
	down := 0
	for _, p := range b.pods() {
		switch {
		case !strings.HasPrefix(p.Name, "web-"):
		case p.DeletionTimestamp != nil && !b.replaced[p.Name]:
			b.replaced[p.Name] = true
			b.addReplica(p.Name+"-again", b.classOf(p.Name))
			down++
		case p.DeletionTimestamp != nil:
			b.end(p.Name)
		case p.Spec.NodeName != "" && p.Status.Phase != corev1.PodRunning:
			p.Status.Phase = corev1.PodRunning
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
			must(b.t, errOf(b.kube.CoreV1().Pods(namespace).UpdateStatus(b.t.Context(), &p, metav1.UpdateOptions{})))
			down++
		}
	}
	b.down = max(b.down, down)
	if b.budget {
		b.allowOne(down)
	}
}

// allowOne allows a disruption some seconds after the last, when all pods run.
func (b *repackBed) allowOne(down int) {
	b.t.Helper()
	budgets := b.kube.PolicyV1().PodDisruptionBudgets(namespace)
	budget, err := budgets.Get(b.t.Context(), "web", metav1.GetOptions{})
	must(b.t, err)
	switch {
	case budget.Status.DisruptionsAllowed > 0:
		b.exhausted = time.Time{}
		return
	case b.exhausted.IsZero():
		b.exhausted = time.Now()
		return
	case down > 0 || time.Since(b.exhausted) < 8*time.Second:
		return
	}
	budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, DisruptionsAllowed: 1, ExpectedPods: 2, DesiredHealthy: 1, CurrentHealthy: 2}
	must(b.t, errOf(budgets.UpdateStatus(b.t.Context(), budget, metav1.UpdateOptions{})))
}

// tainted are the nodes that a repack keeps pods off.
func (b *repackBed) tainted() (names []string) {
	b.t.Helper()
	nodes, err := b.kube.CoreV1().Nodes().List(b.t.Context(), metav1.ListOptions{})
	must(b.t, err)
	for i := range nodes.Items {
		for _, taint := range nodes.Items[i].Spec.Taints {
			if taint.Key == v1alpha1.RepackKey {
				names = append(names, nodes.Items[i].Name)
			}
		}
	}
	return names
}

// evictions counts the Events of them.
func (b *repackBed) evictions() (n int) {
	b.t.Helper()
	events, err := b.kube.EventsV1().Events(namespace).List(b.t.Context(), metav1.ListOptions{FieldSelector: "reason=RepackEvicts"})
	must(b.t, err)
	return len(events.Items)
}

// TestRepack_Applied takes all steps under a PodDisruptionBudget: the GPUs that were advised are free, and never was more than one pod away.
func TestRepack_Applied(t *testing.T) {
	b := newRepackBed(t)
	left := b.scatter()
	b.tick()
	_, err := b.kube.PolicyV1().PodDisruptionBudgets(namespace).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}}}, metav1.CreateOptions{})
	must(t, err)
	b.exhausted = time.Unix(0, 0)
	b.allowOne(0)
	b.budget, b.down = true, 0
	advice := b.advice()
	moves := 0
	for _, s := range advice.Steps {
		moves += len(s.Pods)
	}
	out, err := b.apply(nil)
	if err != nil {
		t.Fatalf("%v; output:\n%s", err, out)
	}
	t.Logf("%d steps, %d moves, %d to %d GPUs:\n%s", len(advice.Steps), moves, advice.WholeNow, advice.WholeThen, out)
	if got := advice.GPUs - len(b.gpus()); got < advice.WholeThen || moves < 3 {
		t.Errorf("%d GPUs are free after %d moves, the advice says %d", got, moves, advice.WholeThen)
	}
	if n := b.evictions(); n != moves || len(b.pods()) != left || len(b.tainted()) > 0 {
		t.Errorf("%d evictions of %d, %d pods of %d, taints of %v", n, moves, len(b.pods()), left, b.tainted())
	}
	if !strings.Contains(out, "would violate the pod's disruption budget") || b.down > 1 {
		t.Errorf("%d pods were away at once; the budget is to refuse and to be waited for; output:\n%s", b.down, out)
	}
}

// TestRepack_Surprise: a replacement that asks for something else is elsewhere, and ends the repack.
func TestRepack_Surprise(t *testing.T) {
	b := newRepackBed(t)
	b.two()
	b.classOf = func(string) string { return "mig-2g.20gb.cleave.dev" }
	out, err := b.apply(nil)
	exit := &exec.ExitError{}
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(out, "stopped: step 1: Elsewhere: the replacement of pod default/web-0") {
		t.Errorf("got %v, output:\n%s", err, out)
	}
	if n := b.evictions(); n != 1 || len(b.tainted()) > 0 {
		t.Errorf("%d evictions, taints of %v", n, b.tainted())
	}
	b.checkNodes()
}

// checkNodes: of a node, the account may change the taint of a repack, and nothing else.
func (b *repackBed) checkNodes() {
	b.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", b.account)
	must(b.t, err)
	client, err := kubernetes.NewForConfig(config)
	must(b.t, err)
	for patch, allowed := range map[string]bool{
		`{"metadata":{"labels":{"a":"b"}}}`:                                                false,
		`{"metadata":{"annotations":{"a":"b"}}}`:                                           false,
		`{"spec":{"unschedulable":true}}`:                                                  false,
		`{"spec":{"taints":[{"key":"other","effect":"NoSchedule"}]}}`:                      false,
		`{"spec":{"taints":[{"key":"` + v1alpha1.RepackKey + `","effect":"NoSchedule"}]}}`: true,
	} {
		_, err := client.CoreV1().Nodes().Patch(b.t.Context(), "n3", types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		if allowed != (err == nil) || err != nil && !strings.Contains(err.Error(), "may write the taint gpu.cleave.dev/repack of nodes only") {
			b.t.Errorf("%s: got %v, want allowed: %t", patch, err, allowed)
		}
	}
}

// TestRepack_Killed kills the program while a pod ends. Another goes on from what is there: the taint is gone, and so is the gap.
func TestRepack_Killed(t *testing.T) {
	b := newRepackBed(t)
	b.two()
	out, err := b.apply(func() bool {
		for _, p := range b.pods() {
			if p.DeletionTimestamp != nil {
				return true
			}
		}
		return false
	})
	if left := b.tainted(); err == nil || len(left) != 1 {
		t.Fatalf("killed: %v, with taints of %v; output:\n%s", err, left, out)
	}
	if out, err := b.apply(nil); err != nil {
		t.Errorf("%v; output:\n%s", err, out)
	}
	if got := len(b.gpus()); got != 1 || len(b.pods()) != 2 || len(b.tainted()) > 0 {
		t.Errorf("%d pods are on %d GPUs, with taints of %v; killed at:\n%s", len(b.pods()), got, b.tainted(), out)
	}
}
