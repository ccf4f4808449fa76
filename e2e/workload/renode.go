// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// RecreateNode deletes a Node object and makes it anew, as a kubelet does that registers again. The garbage collector then deletes what
// the first one owned, which are the ResourceSlices: RecreateNode returns once the pool is complete and the new one owns all of it.
func RecreateNode(ctx context.Context, kube kubernetes.Interface, name string) error {
	nodes := kube.CoreV1().Nodes()
	old, err := nodes.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node %s: %w", name, err)
	}
	// With its status, as a kubelet registers: of a node without one the kubelet refuses pods that were bound to it (OutOfpods).
	fresh := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: old.Labels, Annotations: old.Annotations}, Spec: old.Spec,
		Status: old.Status}
	if err := nodes.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete node %s: %w", name, err)
	}
	if fresh, err = nodes.Create(ctx, fresh, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create node %s again: %w", name, err)
	}
	return Until(ctx, "the ResourceSlices to be those of the new node", func(ctx context.Context) (bool, string, error) {
		list, err := kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + name})
		if err != nil {
			return false, "", err
		}
		of := func(s resourceapi.ResourceSlice) bool {
			return len(s.OwnerReferences) == 1 && s.OwnerReferences[0].UID == fresh.UID
		}
		all := len(list.Items)
		complete := all > 0 && int64(all) == list.Items[0].Spec.Pool.ResourceSliceCount
		others := slices.DeleteFunc(list.Items, of)
		return complete && len(others) == 0, fmt.Sprintf("%d of %d slices are not", len(others), all), nil
	})
}
