// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
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
	"github.com/cleave-dra/cleave/e2e/workload"
)

const dashboardName = "cleave-dashboard"

// fromChart is an object of a rendered chart.
func fromChart[T any](t *testing.T, values, kind, name string) *T {
	t.Helper()
	o := find(mustRender(t, values), kind, name)
	if o == nil {
		t.Fatalf("the chart has no %s %s", kind, name)
	}
	typed := new(T)
	must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, typed))
	return typed
}

// The dashboard is off by default. Where it is on, it can do nothing but read, and reaches nothing of the host.
func TestDashboard_Privileges(t *testing.T) {
	for _, o := range mustRender(t, "") {
		if strings.Contains(o.GetName(), "dashboard") {
			t.Errorf("there is a %s %s by default", o.GetKind(), o.GetName())
		}
	}
	const on, withoutPods = "dashboard: {enabled: true}", "dashboard: {enabled: true, pods: false}"
	for _, rule := range fromChart[rbacv1.ClusterRole](t, withoutPods, "ClusterRole", dashboardName).Rules {
		if slices.Contains(rule.Resources, "pods") {
			t.Errorf("it may %s pods", rule.Verbs)
		}
	}
	for _, rule := range fromChart[rbacv1.ClusterRole](t, on, "ClusterRole", dashboardName).Rules {
		for _, verb := range rule.Verbs {
			if verb != "list" && verb != "watch" {
				t.Errorf("it may %s %v", verb, rule.Resources)
			}
		}
		if slices.Contains(rule.Resources, "*") || slices.Contains(rule.Resources, "secrets") {
			t.Errorf("it may read %v", rule.Resources)
		}
	}
	pod := fromChart[appsv1.Deployment](t, on, "Deployment", dashboardName).Spec.Template.Spec
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

// On a cluster it shows the node, and a claim as soon as it is allocated. Its account cannot write.
func TestDashboard_OnCluster(t *testing.T) {
	ctx := onCluster(t, patience)
	values := env.values(true) + fmt.Sprintf(`
dashboard: {enabled: true, tolerations: [{operator: Exists}], env: [{name: KUBERNETES_SERVICE_HOST, value: "%s"}, {name: KUBERNETES_SERVICE_PORT, value: "%s"}]}
`, cluster.PodGateway, env.api.Port)
	t.Cleanup(func() { uninstall(t, context.Background()) })
	helmOn(t, values, "install", "cleave", chartDir, "--create-namespace")
	var address string
	must(t, workload.Until(ctx, "the dashboard to be ready", func(ctx context.Context) (bool, string, error) {
		pod := podOf(t, ctx, "dashboard")
		address = net.JoinHostPort(pod.Status.PodIP, "8080")
		return len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].Ready, workload.Describe(pod), nil
	}))
	shows := func(path, what string) {
		t.Helper()
		must(t, workload.Until(ctx, path+" to show "+what, func(ctx context.Context) (bool, string, error) {
			body, err := read(ctx, "http://"+address+path)
			return err == nil && strings.Contains(body, what), fmt.Sprintf("%v %.300s", err, body), nil
		}))
	}
	nodes, err := env.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	must(t, err)
	shows("/", "node-"+nodes.Items[0].Name)
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "dashboard", Namespace: "default"}, Spec: ask("gpu.cleave.dev", nil)}
	_, err = env.kube.ResourceV1().ResourceClaims("default").Create(ctx, claim, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		_ = env.kube.ResourceV1().ResourceClaims("default").Delete(context.Background(), "dashboard", metav1.DeleteOptions{})
	})
	shows("/claims?q=is:pending", "default/dashboard")
	showsHolder(ctx, t, shows)
	readOnly(ctx, t)
}

// showsHolder runs pods with a whole GPU, a partition and shares, and looks for each claim on the pages of its node and of itself,
// there with its device and the pod.
func showsHolder(ctx context.Context, t *testing.T, shows func(path, what string)) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		emptyDemo(ctx, t)
	})
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

func read(ctx context.Context, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// readOnly asks the API server about every verb on what the dashboard reads, and on what it must not.
func readOnly(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, resource := range []string{"resource.k8s.io/resourceslices", "resource.k8s.io/resourceclaims", "resource.k8s.io/deviceclasses",
		"resource.k8s.io/devicetaintrules", "/nodes", "/pods", "/secrets", "/configmaps", "/events"} {
		group, name, _ := strings.Cut(resource, "/")
		for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "*"} {
			review, err := env.kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{
					User:               "system:serviceaccount:" + namespace + ":" + dashboardName,
					Groups:             []string{"system:serviceaccounts", "system:authenticated"},
					ResourceAttributes: &authorizationv1.ResourceAttributes{Group: group, Resource: name, Verb: verb},
				},
			}, metav1.CreateOptions{})
			must(t, err)
			reads := (verb == "list" || verb == "watch") && (group != "" || name == "nodes" || name == "pods")
			if review.Status.Allowed != reads {
				t.Errorf("it may %s %s: %v", verb, resource, review.Status.Allowed)
			}
		}
	}
}
