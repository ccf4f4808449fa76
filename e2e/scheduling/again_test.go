// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// addLocalClass creates the class of local volumes, which are bound once a pod has its node.
func addLocalClass(b *bed) {
	b.t.Helper()
	must(b.t, errOf(b.kube.StorageV1().StorageClasses().Create(b.t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}, metav1.CreateOptions{})))
}

// withLocalVolume has a pod wait in PreBind until bindVolumes is called: its devices are stored, and it has no node yet.
func withLocalVolume(b *bed, claim string) func(*corev1.Pod) {
	b.t.Helper()
	must(b.t, errOf(b.kube.CoreV1().PersistentVolumeClaims(namespace).Create(b.t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: claim, Finalizers: []string{"kubernetes.io/pvc-protection"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new("local"),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{})))
	return mounting(claim)
}

// localVolume creates a volume that is on a node, and that no claim has.
func localVolume(b *bed, name, node string) {
	b.t.Helper()
	v, err := b.kube.CoreV1().PersistentVolumes().Create(b.t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "local", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/mnt/x"}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}},
			}}},
		},
	}, metav1.CreateOptions{})
	must(b.t, err)
	v.Status.Phase = corev1.VolumeAvailable
	must(b.t, errOf(b.kube.CoreV1().PersistentVolumes().UpdateStatus(b.t.Context(), v, metav1.UpdateOptions{})))
}

// bound waits until a pod with a volume has a node.
func bound(b *bed, name string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), startTimeout)
	defer cancel()
	must(b.t, workload.Until(ctx, name+" to have a node", func(ctx context.Context) (bool, string, error) {
		bindVolumes(b)
		pod, err := b.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && pod.Spec.NodeName != "", "", err
	}))
}

// bindVolumes is what the controller of volumes does after VolumeBinding.
func bindVolumes(b *bed) {
	ctx := b.t.Context()
	all, err := b.kube.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	must(b.t, err)
	for i := range all.Items {
		v := &all.Items[i]
		if v.Spec.ClaimRef == nil || v.Status.Phase == corev1.VolumeBound {
			continue
		}
		claim, err := b.kube.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, v.Spec.ClaimRef.Name, metav1.GetOptions{})
		must(b.t, err)
		claim.Spec.VolumeName = v.Name
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, "pv.kubernetes.io/bind-completed", "yes")
		claim, err = b.kube.CoreV1().PersistentVolumeClaims(namespace).Update(ctx, claim, metav1.UpdateOptions{})
		must(b.t, err)
		claim.Status.Phase = corev1.ClaimBound
		must(b.t, errOf(b.kube.CoreV1().PersistentVolumeClaims(namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{})))
		v.Status.Phase = corev1.VolumeBound
		must(b.t, errOf(b.kube.CoreV1().PersistentVolumes().UpdateStatus(ctx, v, metav1.UpdateOptions{})))
	}
}

// TestScheduler_VolumeAppears: n1 has local volumes and no GPU left, n2 GPUs and no volume. Then volumes are added on n2. kube-scheduler tries
// pods again that VolumeBinding refused somewhere.
func TestScheduler_VolumeAppears(t *testing.T) {
	b := newBed(t, "n1", "n2")
	addLocalClass(b)
	for i := range 4 {
		localVolume(b, fmt.Sprint("n1-", i), "n1")
	}
	b.startScheduler("{}")
	b.addPods("filler", "gpu.cleave.dev", 8, onNode("n1"))
	b.scheduled(8)
	for i := range 2 {
		name := fmt.Sprint("wait-", i)
		b.addPodOf(name, workload.ClaimSpec("gpu.cleave.dev", 1), withLocalVolume(b, name))
		b.waits(name)
	}
	localVolume(b, "n2-0", "n2")
	localVolume(b, "n2-1", "n2")
	bound(b, "wait-0")
	bound(b, "wait-1")
}

// TestPreemption_GPUAndNIC: all NICs (and all GPUs, or not) are of pods of low priority. Two pods of high priority that need both come.
func TestPreemption_GPUAndNIC(t *testing.T) {
	for _, rest := range []int{0, 4} {
		t.Run(fmt.Sprint(rest, " others"), func(t *testing.T) {
			b := newPriorityBed(t, "n1")
			addNICClass(b.bed)
			addNICs(b.bed, "n1", 0)
			b.startScheduler("{}")
			for i := range 4 {
				b.addPodOf(fmt.Sprint("low-", i), withNIC("gpu.cleave.dev", false), priority("low"), graceful)
			}
			if rest > 0 {
				b.addPods("other", "gpu.cleave.dev", rest, priority("low"), graceful)
			}
			b.scheduled(4 + rest)
			for i := range 2 {
				b.addPodOf(fmt.Sprint("high-", i), withNIC("gpu.cleave.dev", false), priority("high"))
			}
			b.ending(2)
		})
	}
}

// TestScheduler_ResizedDown: n1 is large and has no GPU left, n2 has GPUs and is too small. A pod that waits is resized.
func TestScheduler_ResizedDown(t *testing.T) {
	b := newBed(t, "n1", "n2")
	addCapacity(b, "n1", `{"cpu":"256"}`)
	b.startScheduler("{}")
	b.addPods("filler", "gpu.cleave.dev", 8, onNode("n1"))
	b.scheduled(8)
	for i := range 2 {
		b.addPods(fmt.Sprint("wait", i), "gpu.cleave.dev", 1, requests("200", "1Gi"))
		b.waits(fmt.Sprintf("wait%d-0", i))
	}
	for i := range 2 {
		name := fmt.Sprintf("wait%d-0", i)
		_, err := b.kube.CoreV1().Pods(namespace).Patch(t.Context(), name, types.StrategicMergePatchType,
			[]byte(`{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"1"}}}]}}`), metav1.PatchOptions{}, "resize")
		must(t, err)
		b.running(name)
	}
}
