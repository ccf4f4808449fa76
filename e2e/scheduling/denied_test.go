// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// protects has an admission policy refuse that pods are deleted whose names begin with a prefix, as that of one does.
func (b priorityBed) protects(prefix, one string) {
	b.t.Helper()
	policies, bindings := b.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies(), b.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	rule := admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Delete},
		Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
	}}
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "protects"}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{rule}},
		Validations:      []admissionv1.Validation{{Expression: "!oldObject.metadata.name.startsWith('" + prefix + "')"}},
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "protects"}, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: "protects", ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}
	must(b.t, errOf(policies.Create(b.t.Context(), policy, metav1.CreateOptions{})))
	must(b.t, errOf(bindings.Create(b.t.Context(), binding, metav1.CreateOptions{})))
	pods := b.kube.CoreV1().Pods(namespace)
	denied := func(want bool) func(ctx context.Context) (bool, string, error) {
		return func(ctx context.Context) (bool, string, error) {
			err := pods.Delete(ctx, one, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
			if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
				return want, err.Error(), nil
			}
			return !want, "", err
		}
	}
	b.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		must(b.t, bindings.Delete(ctx, "protects", metav1.DeleteOptions{}))
		must(b.t, policies.Delete(ctx, "protects", metav1.DeleteOptions{}))
		must(b.t, workload.Until(ctx, "pods to be deleted again", denied(false)))
	})
	ctx, cancel := context.WithTimeout(b.t.Context(), startTimeout)
	defer cancel()
	must(b.t, workload.Until(ctx, "the policy", denied(true)))
}

// TestPreemption_DeleteDenied: the API server refuses to delete the pods of two nodes. Those of another one go.
func TestPreemption_DeleteDenied(t *testing.T) {
	b := newPriorityBed(t, "n1", "n2", "n3")
	b.startScheduler("{}")
	b.addPods("kept-1", "gpu.cleave.dev", 8, priority("low"), graceful, onNode("n1"))
	b.addPods("kept-2", "gpu.cleave.dev", 8, priority("low"), graceful, onNode("n2"))
	b.addPods("low", "gpu.cleave.dev", 8, priority("middle"), graceful, onNode("n3"))
	b.scheduled(24)
	b.protects("kept", "kept-1-0")
	b.addPods("high", "gpu.cleave.dev", 1, priority("high"))
	allOf(t, b.evictedFor("high-0", 1), "low")
}
