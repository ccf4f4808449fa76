// SPDX-License-Identifier: Apache-2.0

package kubeadm

import (
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
	"sigs.k8s.io/yaml"
)

// rules are those of the scheduler's ClusterRole in the chart.
const rules = "../../deployments/helm/cleave/files/scheduler-rules.yaml"

// TestRules: the chart gives the scheduler what Kubernetes' role system:kube-scheduler has, but no leases: it has a Role for its own.
// UPDATE=1 writes the file.
func TestRules(t *testing.T) {
	roles := bootstrappolicy.ClusterRoles()
	i := slices.IndexFunc(roles, func(r rbacv1.ClusterRole) bool { return r.Name == "system:kube-scheduler" })
	if i < 0 {
		t.Fatal("Kubernetes has no role system:kube-scheduler")
	}
	all := roles[i].Rules
	want := slices.DeleteFunc(slices.Clone(all), func(r rbacv1.PolicyRule) bool { return slices.Contains(r.APIGroups, "coordination.k8s.io") })
	if len(all)-len(want) != 3 {
		t.Errorf("%d rules are about leases, want 3", len(all)-len(want))
	}
	if os.Getenv("UPDATE") == "1" {
		data, err := yaml.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		head := "# system:kube-scheduler of Kubernetes 1.37 without its leases. e2e/kubeadm compares and writes it.\n"
		if err := os.WriteFile(rules, append([]byte(head), data...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(rules)
	if err != nil {
		t.Fatal(err)
	}
	var got []rbacv1.PolicyRule
	if err := yaml.UnmarshalStrict(data, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s differs from Kubernetes; UPDATE=1 writes it (-want +got):\n%s", rules, diff)
	}
}
