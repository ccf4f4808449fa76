// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"fmt"
	"sync"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// A claim that a policy of today would refuse was created before that was installed: its finalizers can be added and removed, and
// it goes. The claim controller removes its own by an update of the claim (syncClaim in k8s.io/kubernetes,
// pkg/controller/resourceclaim/controller.go).
func claimFinalizers(t *testing.T, ctx context.Context) {
	const policy, held = "cleave-claims", "test.example.com/held"
	bindings, claims := env.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings(), env.kube.ResourceV1().ResourceClaims(demo)
	binding, err := bindings.Get(ctx, policy, metav1.GetOptions{})
	must(t, err)
	wrong := ask("mps.cleave.dev", func(r *resourceapi.ExactDeviceRequest) { r.Count = 2 })
	must(t, bindings.Delete(ctx, policy, metav1.DeleteOptions{}))
	restore := sync.OnceFunc(func() {
		_, err := bindings.Create(ctx, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: policy, Labels: binding.Labels, Annotations: binding.Annotations}, Spec: binding.Spec,
		}, metav1.CreateOptions{})
		must(t, err)
	})
	defer restore()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "older-than-the-policy", Finalizers: []string{held}}, Spec: wrong}
	must(t, workload.Until(ctx, "the policy to be out of force", func(ctx context.Context) (bool, string, error) {
		_, err := claims.Create(ctx, claim, metav1.CreateOptions{})
		return err == nil, fmt.Sprint(err), nil
	}))
	restore()
	must(t, workload.Until(ctx, "the policy to be in force", func(ctx context.Context) (bool, string, error) {
		other := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, Spec: wrong}
		_, err := claims.Create(ctx, other, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil, "a claim that it refuses can be created", nil
	}))
	edit := func(finalizers ...string) {
		now, err := claims.Get(ctx, claim.Name, metav1.GetOptions{})
		must(t, err)
		now.Finalizers = finalizers
		_, err = claims.Update(ctx, now, metav1.UpdateOptions{})
		must(t, err)
	}
	edit(held, "test.example.com/added")
	must(t, claims.Delete(ctx, claim.Name, metav1.DeleteOptions{}))
	edit()
	if _, err := claims.Get(ctx, claim.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the claim without finalizers: %v, want that it is gone", err)
	}
}
