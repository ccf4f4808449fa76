// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/release"
	"github.com/cleave-dra/cleave/e2e/workload"
)

const dashboardName = "cleave-dashboard"

// The dashboard can do nothing but read, and reaches nothing of the host.
func TestDashboard_Privileges(t *testing.T) {
	const on, withoutPods = "dashboard: {enabled: true, pods: true}", "dashboard: {enabled: true}"
	for _, rule := range typed[rbacv1.ClusterRole](t, mustRender(t, withoutPods), "ClusterRole", dashboardName).Rules {
		for _, of := range []string{"pods", "resourceclaimtemplates", "resourcequotas"} {
			if slices.Contains(rule.Resources, of) {
				t.Errorf("it may %s %s", rule.Verbs, of)
			}
		}
	}
	for _, rule := range typed[rbacv1.ClusterRole](t, mustRender(t, on), "ClusterRole", dashboardName).Rules {
		for _, verb := range rule.Verbs {
			if verb != "list" && verb != "watch" {
				t.Errorf("it may %s %v", verb, rule.Resources)
			}
		}
		if slices.Contains(rule.Resources, "*") || slices.Contains(rule.Resources, "secrets") {
			t.Errorf("it may read %v", rule.Resources)
		}
	}
	pod := typed[appsv1.Deployment](t, mustRender(t, on), "Deployment", dashboardName).Spec.Template.Spec
	c := pod.Containers[0].SecurityContext
	if !*pod.SecurityContext.RunAsNonRoot || !*c.ReadOnlyRootFilesystem || *c.AllowPrivilegeEscalation || len(c.Capabilities.Drop) != 1 ||
		len(pod.Volumes) != 0 || pod.HostNetwork || pod.HostPID || pod.HostIPC {
		t.Errorf("its pod is %+v", pod)
	}
	// Who may connect is nobody but the node, unless somebody is named.
	for values, want := range map[string]string{on: "<nil>", matrix["dashboard for some"]: "ingress"} {
		policy := find(mustRender(t, values), "NetworkPolicy", dashboardName)
		if got := fmt.Sprint(policy.Object["spec"].(map[string]any)["ingress"]); !strings.Contains(got, want) {
			t.Errorf("%s: ingress %s, want %s", values, got, want)
		}
	}
}

// TestDashboard_OnCluster goes over what a release reports: to people, to Prometheus, and of itself.
func TestDashboard_OnCluster(t *testing.T) {
	tools := monitoringTools(t, tests.Bound(t, toolsTimeout))
	ctx := tests.Bound(t, timeout)
	defer removeAfterFailure(t)
	must(t, release.ImportDashboard(ctx, env.cluster, source))
	installedWith(t, ctx, env.values(false)+fmt.Sprintf(`
dashboard: {enabled: true, pods: true, tolerations: [{operator: Exists}], env: [{name: KUBERNETES_SERVICE_HOST, value: "%s"}, {name: KUBERNETES_SERVICE_PORT, value: "%s"}]}
`, cluster.PodGateway, env.api.Port))
	workload.RunSteps(t, 2*timeout, diagnosis, []workload.Step{
		{Name: "claims on pages", Run: dashboardShows},
		{Name: "it cannot write", Run: readOnly},
		{Name: "every panel has data", Run: func(t *testing.T, ctx context.Context) { panelsHaveData(t, ctx, tools) }},
		{Name: "DeviceClasses are deleted, and the release ends", Run: classesDeleted},
	})
}

// dashboardShows looks for the node, and for claims as soon as they are allocated.
func dashboardShows(t *testing.T, ctx context.Context) {
	address := net.JoinHostPort(onlyPod(t, ctx, "dashboard", ready).Status.PodIP, "8080")
	shows := func(path, what string) {
		t.Helper()
		must(t, workload.Until(ctx, path+" to show "+what, func(ctx context.Context) (bool, string, error) {
			_, body, err := process.Read(ctx, "http://"+address+path, "")
			return err == nil && strings.Contains(body, what), fmt.Sprintf("%v %.300s", err, body), nil
		}))
	}
	shows("/", "node-"+env.cluster.NodeName())
	atEnd(t, emptyDemo)
	create(t, ctx, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "dashboard"}, Spec: ask("gpu.cleave.dev", nil)})
	shows("/claims?q=is:pending", demo+"/dashboard")
	refusedByQuota(t, ctx)
	shows("/claims?q=is:missing", demo+"/nightly-gpu-")
	shows("/claims/"+demo+"/nightly-gpu-", "ResourceQuota none allows 0 of mps.cleave.dev.deviceclass.resource.k8s.io/devices, 0 are used")
	// Pods with a whole GPU, a partition and shares: each claim is on the pages of its node and of itself, there with its device and
	// the pod.
	for _, name := range []string{"one-gpu", "mig-one-parent", "timeslice-four-notebooks"} {
		for _, pod := range example(t, ctx, name, nil) {
			for _, reference := range pod.Status.ResourceClaimStatuses {
				claim, err := env.kube.ResourceV1().ResourceClaims(demo).Get(ctx, *reference.ResourceClaimName, metav1.GetOptions{})
				must(t, err)
				shows("/nodes/"+pod.Spec.NodeName, claim.Name)
				shows("/claims?q=is:allocated", demo+"/"+claim.Name)
				path := "/claims/" + demo + "/" + claim.Name
				shows(path, pod.Name)
				for _, result := range claim.Status.Allocation.Devices.Results {
					shows(path, result.Device)
				}
			}
		}
	}
}

// refusedByQuota creates a pod whose claim a quota refuses to be created from its template.
func refusedByQuota(t *testing.T, ctx context.Context) {
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "none"}}
	quota.Spec.Hard = corev1.ResourceList{"mps.cleave.dev.deviceclass.resource.k8s.io/devices": resource.MustParse("0")}
	create(t, ctx, quota)
	quotas := env.kube.CoreV1().ResourceQuotas(demo)
	atEnd(t, func(t *testing.T, ctx context.Context) {
		must(t, quotas.Delete(ctx, quota.Name, metav1.DeleteOptions{}))
	})
	must(t, workload.Until(ctx, "the quota to hold", func(ctx context.Context) (bool, string, error) {
		q, err := quotas.Get(ctx, quota.Name, metav1.GetOptions{})
		return err == nil && len(q.Status.Hard) > 0, "", err
	}))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "nightly"}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("share")}}
	pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}}
	create(t, ctx, &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "share"},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: ask("mps.cleave.dev", nil)}}, pod)
}

// readOnly asks the API server about every verb on what the dashboard reads, and on what it must not.
func readOnly(t *testing.T, ctx context.Context) {
	for _, resource := range []string{"resource.k8s.io/resourceslices", "resource.k8s.io/resourceclaims", "resource.k8s.io/deviceclasses",
		"resource.k8s.io/devicetaintrules", "resource.k8s.io/resourceclaimtemplates", "/nodes", "/pods", "/resourcequotas", "/secrets", "/configmaps",
		"/events"} {
		group, name, _ := strings.Cut(resource, "/")
		for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "*"} {
			reads := (verb == "list" || verb == "watch") && (group != "" || slices.Contains([]string{"nodes", "pods", "resourcequotas"}, name))
			if may := mayDo(t, ctx, dashboardName, authorizationv1.ResourceAttributes{Group: group, Resource: name, Verb: verb}); may != reads {
				t.Errorf("it may %s %s: %t", verb, resource, may)
			}
		}
	}
}
