// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/tools/repack"
)

// addReplica creates a pod of a ReplicaSet and its claim, as controllers do, which are not here.
func (b *repackBed) addReplica(name, class string) {
	b.t.Helper()
	ctx := b.t.Context()
	pods, claims := b.kube.CoreV1().Pods(namespace), b.kube.ResourceV1().ResourceClaims(namespace)
	template := "template"
	pod := podWith(corev1.PodResourceClaim{Name: "gpu", ResourceClaimTemplateName: &template})
	pod.Name = name
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "0", Controller: new(true)}}
	pod, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	must(b.t, err)
	_, err = claims.Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Pod", Name: name, UID: pod.UID, Controller: new(true)}}},
		Spec: workload.ClaimSpec(class, 1),
	}, metav1.CreateOptions{})
	must(b.t, err)
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &name}}
	_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	must(b.t, err)
}

// end deletes a pod with its claim.
func (b *repackBed) end(name string) {
	b.t.Helper()
	b.free(name)
	claims := b.kube.ResourceV1().ResourceClaims(namespace)
	for _, err := range []error{
		errOf(claims.Patch(b.t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})),
		claims.Delete(b.t.Context(), name, metav1.DeleteOptions{}),
		b.kube.CoreV1().Pods(namespace).Delete(b.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}),
	} {
		must(b.t, err)
	}
}

// errOf is the error of a call that returns something besides.
func errOf[T any](_ T, err error) error { return err }

// place is where a pod got its device.
func (b *repackBed) place(name string) repack.Place {
	b.t.Helper()
	claim, err := b.kube.ResourceV1().ResourceClaims(namespace).Get(b.t.Context(), name, metav1.GetOptions{})
	if err != nil || claim.Status.Allocation == nil {
		b.t.Fatalf("claim %s is not allocated: %v", name, err)
	}
	r := claim.Status.Allocation.Devices.Results[0]
	return repack.Place{Node: r.Pool, Devices: []string{r.Device}}
}

// placedAsAdvised checks where the replacement of a pod is. Which of several places it has, other plugins decide; without
// devices, earlier replacements decide which these are.
func placedAsAdvised(b *repackBed, m repack.Move) {
	b.t.Helper()
	got := b.place(m.Pod + "-again")
	for _, p := range append([]repack.Place{m.To}, m.Or...) {
		if p.Node == got.Node && (len(p.Devices) == 0 || cmp.Equal(p, got)) {
			return
		}
	}
	b.t.Errorf("replacement of %s is at %v, advised are %v %v", m.Pod, got, m.To, m.Or)
}

func (b *repackBed) cordon(node string, on bool) {
	b.t.Helper()
	text := fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, on)
	must(b.t, errOf(b.kube.CoreV1().Nodes().Patch(b.t.Context(), node, types.MergePatchType, []byte(text), metav1.PatchOptions{})))
}

// scattered are the classes of the pods of scatter.
var scattered = []string{"mig-1g.10gb.cleave.dev", "mig-2g.20gb.cleave.dev", "mig-1g.10gb.cleave.dev", "timeslice.cleave.dev", "mig-3g.40gb.cleave.dev"}

// scatter creates replicas on all nodes and ends most of them. It returns how many are left.
func (b *repackBed) scatter() (left int) {
	b.t.Helper()
	const replicas = 60
	for i := range replicas {
		name := fmt.Sprintf("web-%02d", i)
		b.addReplica(name, classOf(name))
	}
	b.scheduled(replicas)
	for i := range replicas {
		if i*7%10 < 6 { // whatever began together does not end together
			b.end(fmt.Sprintf("web-%02d", i))
		} else {
			left++
		}
	}
	return left
}

// classOf is that of a pod of scatter, or of its replacement.
func classOf(pod string) string {
	var i int
	_, _ = fmt.Sscanf(pod, "web-%d", &i) // the first of them, for others
	return scattered[i%len(scattered)]
}

// advice is what the program advises.
func (b *repackBed) advice() *repack.Advice {
	b.t.Helper()
	out, err := exec.CommandContext(b.t.Context(), bin("cleave"), "repack", "-o", "json", "--kubeconfig", b.kubeconfig).Output()
	must(b.t, err)
	advice := &repack.Advice{}
	must(b.t, json.Unmarshal(out, advice))
	return advice
}

// TestRepack_Followed follows the advice of the program, with cleave-scheduler: each replacement gets the place that was
// advised, whether the old pod still has its devices or not, and the GPUs are free afterwards.
func TestRepack_Followed(t *testing.T) {
	b := &repackBed{bed: newBed(t, "n1", "n2", "n3")}
	b.startScheduler("{}")
	left := b.scatter()
	advice := b.advice()
	if got := advice.GPUs - len(b.gpus()); got != advice.WholeNow || len(advice.Steps) < 2 || len(advice.Problems) > 0 {
		t.Fatalf("%d GPUs are free; the advice is %+v", got, advice)
	}
	moves := 0
	for _, step := range advice.Steps {
		if step.Cordon != "" {
			b.cordon(step.Cordon, true)
		}
		for _, m := range step.Pods {
			moves++
			first := moves%2 == 0 || len(m.Or) > 0 || len(m.To.Devices) == 0 // as of a StatefulSet
			if first {
				b.end(m.Pod)
				left--
			}
			b.addReplica(m.Pod+"-again", classOf(m.Pod))
			b.scheduled(left + 1)
			placedAsAdvised(b, m)
			if left++; !first {
				b.end(m.Pod)
				left--
			}
		}
		if step.Cordon != "" {
			b.cordon(step.Cordon, false)
		}
	}
	t.Logf("%d steps, %d restarts, %d to %d GPUs", len(advice.Steps), moves, advice.WholeNow, advice.WholeThen)
	if got := advice.GPUs - len(b.gpus()); got != advice.WholeThen {
		t.Errorf("%d GPUs are free after all, the advice says %d", got, advice.WholeThen)
	}
}
