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
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/release"
	"github.com/cleave-dra/cleave/e2e/workload"
)

const dashboardName = "cleave-dashboard"

// The dashboard can do nothing but read, and reaches nothing of the host.
func TestDashboard_Privileges(t *testing.T) {
	const on, withoutPods = "dashboard: {enabled: true, pods: true}", "dashboard: {enabled: true}"
	for _, rule := range typed[rbacv1.ClusterRole](t, mustRender(t, withoutPods), "ClusterRole", dashboardName).Rules {
		if slices.Contains(rule.Resources, "pods") {
			t.Errorf("it may %s pods", rule.Verbs)
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
			_, body, err := read(ctx, "http://"+address+path, "")
			return err == nil && strings.Contains(body, what), fmt.Sprintf("%v %.300s", err, body), nil
		}))
	}
	shows("/", "node-"+env.cluster.NodeName())
	atEnd(t, emptyDemo)
	must(t, workload.Create(ctx, env.kube, demo, []runtime.Object{
		&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "dashboard"}, Spec: ask("gpu.cleave.dev", nil)}}))
	shows("/claims?q=is:pending", demo+"/dashboard")
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

// readOnly asks the API server about every verb on what the dashboard reads, and on what it must not.
func readOnly(t *testing.T, ctx context.Context) {
	for _, resource := range []string{"resource.k8s.io/resourceslices", "resource.k8s.io/resourceclaims", "resource.k8s.io/deviceclasses",
		"resource.k8s.io/devicetaintrules", "/nodes", "/pods", "/secrets", "/configmaps", "/events"} {
		group, name, _ := strings.Cut(resource, "/")
		for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "*"} {
			reads := (verb == "list" || verb == "watch") && (group != "" || name == "nodes" || name == "pods")
			if may := mayDo(t, ctx, dashboardName, authorizationv1.ResourceAttributes{Group: group, Resource: name, Verb: verb}); may != reads {
				t.Errorf("it may %s %s: %t", verb, resource, may)
			}
		}
	}
}
