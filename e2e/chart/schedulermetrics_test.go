// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// kubeadmDir has what runs the scheduler in the static pod of kube-scheduler.
const kubeadmDir = "../../deployments/kubeadm"

// TestScheduler_PodMonitor: Prometheus finds the pods' port, and reads it with a token that serves for nothing else.
func TestScheduler_PodMonitor(t *testing.T) {
	const values = "metrics: {podMonitor: {enabled: true, interval: 1m, labels: {release: p}}}\nscheduler: {enabled: true}"
	objects := mustRender(t, values)
	monitor := find(objects, "PodMonitor", schedulerName)
	if monitor == nil {
		t.Fatal("there is none")
	}
	d := typed[appsv1.Deployment](t, objects, "Deployment", schedulerName)
	labels, _, _ := unstructured.NestedStringMap(monitor.Object, "spec", "selector", "matchLabels")
	if diff := cmp.Diff(d.Spec.Selector.MatchLabels, labels); diff != "" || monitor.GetLabels()["release"] != "p" {
		t.Errorf("labels %v; it selects other pods than the Deployment (-want +got):\n%s", monitor.GetLabels(), diff)
	}
	endpoints, _, _ := unstructured.NestedSlice(monitor.Object, "spec", "podMetricsEndpoints")
	const account = schedulerName + "-metrics"
	want := []any{map[string]any{
		"port": "metrics", "path": "/metrics", "scheme": "https", "interval": "1m", "tlsConfig": map[string]any{"insecureSkipVerify": true},
		"authorization": map[string]any{"credentials": map[string]any{"name": account, "key": corev1.ServiceAccountTokenKey}},
	}}
	if diff := cmp.Diff(want, endpoints); diff != "" || d.Spec.Template.Spec.Containers[0].Ports[0].Name != "metrics" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
	secret := typed[corev1.Secret](t, objects, "Secret", account)
	if secret.Type != corev1.SecretTypeServiceAccountToken || secret.Annotations[corev1.ServiceAccountNameKey] != account {
		t.Errorf("secret %+v", secret)
	}
	role := typed[rbacv1.ClusterRole](t, objects, "ClusterRole", account)
	if diff := cmp.Diff([]rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}, role.Rules); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	for _, values := range []string{"metrics: {podMonitor: {enabled: true}}", matrix["scheduler"]} {
		for _, o := range kindsAndNames(mustRender(t, values)) {
			if strings.Contains(o, account) || o == "PodMonitor "+schedulerName {
				t.Errorf("%s: there is %s", values, o)
			}
		}
	}
}

// TestScheduler_NetworkPolicy: who may read the plugin's metrics, may reach the scheduler's.
func TestScheduler_NetworkPolicy(t *testing.T) {
	for values, peers := range map[string]int{"": 0, "metrics: {allowFrom: [{podSelector: {matchLabels: {app: prometheus}}}]}\n": 1} {
		policy := typed[networkingv1.NetworkPolicy](t, mustRender(t, values+"scheduler: {enabled: true}"), "NetworkPolicy", schedulerName)
		ingress := policy.Spec.Ingress
		if len(ingress) != peers || peers > 0 && (len(ingress[0].From) != peers || ingress[0].Ports[0].Port.StrVal != "metrics") {
			t.Errorf("%s: ingress %+v", values, ingress)
		}
	}
}

// TestScheduler_AlertNames: the alerts are about the release's own scheduler, plugin and supervisor.
func TestScheduler_AlertNames(t *testing.T) {
	const rule = "fullnameOverride: x\nmetrics: {prometheusRule: {enabled: true}}\nscheduler: {enabled: true, name: %s}"
	for name, names := range map[string]string{"mine": `"default-scheduler|mine"`, "default-scheduler": `"default-scheduler|cleave-scheduler"`} {
		data, err := yaml.Marshal(find(mustRender(t, strings.Replace(rule, "%s", name, 1)), "PrometheusRule", "x").Object)
		must(t, err)
		for _, want := range []string{`job="` + namespace + `/x-scheduler"`, `deployment="x-scheduler"`, `daemonset="x-plugin"`, `daemonset="x-mps"`, names} {
			if !strings.Contains(string(data), want) {
				t.Errorf("%s: no alert has %s", name, want)
			}
		}
	}
}

// TestKubeadm_AsChart: the scheduler in the static pod has the chart's configuration and image.
func TestKubeadm_AsChart(t *testing.T) {
	objects := mustRender(t, "scheduler: {enabled: true, name: default-scheduler}")
	var want, got map[string]any
	must(t, yaml.UnmarshalStrict([]byte(typed[corev1.ConfigMap](t, objects, "ConfigMap", schedulerName).Data["config.yaml"]), &want))
	must(t, yaml.UnmarshalStrict(readFile(t, kubeadmDir+"/cleave-scheduler.yaml"), &got))
	want["clientConnection"].(map[string]any)["kubeconfig"] = "/etc/kubernetes/scheduler.conf"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("configuration (-chart +file):\n%s", diff)
	}
	var patch []struct {
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	must(t, yaml.Unmarshal(readFile(t, kubeadmDir+"/kube-scheduler+json.yaml"), &patch))
	image := typed[appsv1.Deployment](t, objects, "Deployment", schedulerName).Spec.Template.Spec.Containers[0].Image
	if patch[0].Path != "/spec/containers/0/image" || patch[0].Value != image {
		t.Errorf("the patch begins with %+v, want the image %s", patch[0], image)
	}
}
