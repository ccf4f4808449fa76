// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"

	schedulingapi "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// gates has PodGroups, and claims that are theirs: beta in 1.37, and off by default (k8s.io/kubernetes, pkg/features/kube_features.go).
func gates() map[string]bool {
	return map[string]bool{"GenericWorkload": true, "DRAWorkloadResourceClaims": true}
}

// groupAPI is the API of PodGroups, which is off as every beta API.
const groupAPI = "scheduling.k8s.io/v1beta1=true"

// createGroup creates the PodGroup of a shape. Its claims are generated from templates, and reserved for it as a whole.
func createGroup(ctx context.Context, kube kubernetes.Interface, shape Shape, name string) error {
	group := &schedulingapi.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: schedulingapi.PodGroupSpec{
		SchedulingPolicy: schedulingapi.PodGroupSchedulingPolicy{Basic: &schedulingapi.BasicSchedulingPolicy{}},
	}}
	for i, a := range shape.Claims {
		template := string(a)
		group.Spec.ResourceClaims = append(group.Spec.ResourceClaims,
			schedulingapi.PodGroupResourceClaim{Name: claimName(i), ResourceClaimTemplateName: &template})
	}
	return persist(ctx, "create the PodGroup", func(ctx context.Context) error {
		_, err := kube.SchedulingV1beta1().PodGroups(namespace).Create(ctx, group, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // an earlier answer was lost
			return nil
		}
		return err
	})
}

// deleteGroup deletes a PodGroup and waits until it is gone. Its claims end with it.
func deleteGroup(ctx context.Context, kube kubernetes.Interface, name string) error {
	groups := kube.SchedulingV1beta1().PodGroups(namespace)
	err := persist(ctx, "delete the PodGroup", func(ctx context.Context) error {
		return ignoreNotFound(groups.Delete(ctx, name, metav1.DeleteOptions{}))
	})
	if err != nil {
		return err
	}
	return workload.Until(ctx, "the PodGroup to go", func(ctx context.Context) (bool, string, error) {
		_, err := groups.Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprint(err), nil
	})
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
