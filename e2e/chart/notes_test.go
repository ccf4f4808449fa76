// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/version"
)

// discovered are the kinds of the chart, as an API server lists them: by group and version, each with its resource.
var discovered = map[string]map[string]string{
	"v1": {"Node": "nodes", "Namespace": "namespaces", "Secret": "secrets", "ServiceAccount": "serviceaccounts", "Service": "services",
		"ConfigMap": "configmaps", "Pod": "pods"},
	"apps/v1":                      {"DaemonSet": "daemonsets", "Deployment": "deployments"},
	"policy/v1":                    {"PodDisruptionBudget": "poddisruptionbudgets"},
	"networking.k8s.io/v1":         {"NetworkPolicy": "networkpolicies"},
	"resource.k8s.io/v1":           {"DeviceClass": "deviceclasses", "ResourceClaimTemplate": "resourceclaimtemplates"},
	"rbac.authorization.k8s.io/v1": {"Role": "roles", "RoleBinding": "rolebindings", "ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings"},
	"admissionregistration.k8s.io/v1": {"ValidatingAdmissionPolicy": "validatingadmissionpolicies",
		"ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings", "ValidatingWebhookConfiguration": "validatingwebhookconfigurations"},
	"monitoring.coreos.com/v1": {"PodMonitor": "podmonitors"},
}

// clusterScoped are the kinds of them that are in no namespace.
var clusterScoped = map[string]bool{"Node": true, "Namespace": true, "DeviceClass": true, "ClusterRole": true, "ClusterRoleBinding": true,
	"ValidatingAdmissionPolicy": true, "ValidatingAdmissionPolicyBinding": true, "ValidatingWebhookConfiguration": true}

// apiServer is one as far as Helm asks it before it installs: what there is, and the objects by path.
func apiServer(t *testing.T, objects map[string]any) string {
	t.Helper()
	answers := map[string]any{
		"/version":                       version.Info{Major: "1", Minor: "37", GitVersion: "v1.37.2"},
		"/api":                           metav1.APIVersions{Versions: []string{"v1"}},
		"/api/v1/namespaces/kube-system": corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: "kube-system"}},
	}
	// Releases are kept in Secrets: there are none.
	answers["/api/v1/namespaces/"+namespace+"/secrets"] = corev1.SecretList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "SecretList"}}
	var groups metav1.APIGroupList
	for of, kinds := range discovered {
		list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: of}
		for kind, plural := range kinds {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: plural, Kind: kind, Namespaced: !clusterScoped[kind], Verbs: metav1.Verbs{"get", "list"}})
		}
		group, v, named := strings.Cut(of, "/")
		if !named {
			answers["/api/"+of] = list
			continue
		}
		answers["/apis/"+of] = list
		found := metav1.GroupVersionForDiscovery{GroupVersion: of, Version: v}
		groups.Groups = append(groups.Groups, metav1.APIGroup{Name: group, Versions: []metav1.GroupVersionForDiscovery{found}, PreferredVersion: found})
	}
	answers["/apis"] = groups
	for path, o := range objects {
		answers[path] = o
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			answer = metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// dryRun is what Helm prints of an installation on an API server: the objects, and then the notes.
func dryRun(t *testing.T, url, values string) string {
	t.Helper()
	out, err := helm(t, values, "install", "cleave", chartDir, "--namespace", namespace, "--dry-run=server", "--disable-openapi-validation",
		"--kube-apiserver", url, "--kube-token", "none")
	must(t, err)
	return out
}

func node(name string, labels map[string]string, allocatable corev1.ResourceList) corev1.Node {
	return corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: corev1.NodeStatus{Allocatable: allocatable}}
}

func deviceClass(name, extended string) resourceapi.DeviceClass {
	return resourceapi.DeviceClass{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "DeviceClass"},
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{ExtendedResourceName: &extended}}
}

// TestNotes: what keeps Cleave from publishing, or takes its pods away, is said when it is installed.
func TestNotes(t *testing.T) {
	gpus := map[string]string{"nvidia.com/gpu.present": "true"}
	served := func(name, n string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceName(name): resource.MustParse(n)}
	}
	const plugin, noLabel, class, metrics = "A DEVICE PLUGIN SERVES GPUS of 1 node, such as a.", "NO NODE HAS A LABEL", "DEVICECLASS theirs HAS THE EXTENDED RESOURCE nvidia.com/gpu", "NOBODY MAY CONNECT TO THE METRICS"
	const notCPUs = "nodes: {match: [{key: pool, operator: NotIn, values: [cpus]}]}"
	tests := map[string]struct {
		node   corev1.Node
		class  resourceapi.DeviceClass
		values string
		want   string // of the warnings above, or none
	}{
		"nothing":                 {node: node("a", gpus, nil)},
		"no label":                {node: node("a", nil, served("nvidia.com/gpu", "8")), want: noLabel},
		"a device plugin":         {node: node("a", gpus, served("nvidia.com/gpu", "8")), want: plugin},
		"its partitions":          {node: node("a", gpus, served("nvidia.com/mig-1g.10gb", "7")), want: plugin},
		"one that serves nothing": {node: node("a", gpus, served("nvidia.com/gpu", "0"))},
		"network cards":           {node: node("a", gpus, served("nvidia.com/hostdev", "8"))},
		"a label's other value":   {node: node("a", map[string]string{"pool": "gpus"}, nil), values: notCPUs},
		"no such label":           {node: node("a", nil, nil), values: notCPUs},
		"the label's value":       {node: node("a", map[string]string{"pool": "cpus"}, nil), values: notCPUs, want: noLabel},
		"a label that may not be": {node: node("a", gpus, nil), values: "nodes: {match: [{key: nvidia.com/gpu.present, operator: DoesNotExist}]}", want: noLabel},
		"one that is not":         {node: node("a", nil, nil), values: "nodes: {match: [{key: nvidia.com/gpu.present, operator: DoesNotExist}]}"},
		"a greater number":        {node: node("a", map[string]string{"gpus": "10"}, nil), values: "nodes: {match: [{key: gpus, operator: Gt, values: ['4']}]}"},
		"no greater number":       {node: node("a", map[string]string{"gpus": "10"}, nil), values: "nodes: {match: [{key: gpus, operator: Lt, values: ['4']}]}", want: noLabel},
		"selected":                {node: node("a", map[string]string{"nvidia.com/gpu.present": "true", "pool": "cos"}, nil), values: "nodes: {selector: {pool: cos}}"},
		"another release's node":  {node: node("a", gpus, served("nvidia.com/gpu", "8")), values: "nodes: {selector: {pool: cos}}", want: noLabel},
		"every node":              {node: node("a", nil, served("nvidia.com/gpu", "8")), values: "nodes: {match: []}", want: plugin},
		"a class":                 {node: node("a", gpus, nil), class: deviceClass("theirs", "nvidia.com/gpu"), want: class},
		"a class of its own":      {node: node("a", gpus, nil), class: deviceClass("gpu.cleave.dev", "nvidia.com/gpu")},
		"a class elsewhere":       {node: node("a", gpus, nil), class: deviceClass("theirs", "example.com/gpu")},
		"a resource elsewhere": {node: node("a", gpus, nil), class: deviceClass("theirs", "nvidia.com/gpu"),
			values: "deviceClasses: {gpu: {extendedResourceName: ''}}"},
		"monitored": {node: node("a", gpus, nil), values: "metrics: {podMonitor: {enabled: true}}", want: metrics},
		"admitted":  {node: node("a", gpus, nil), values: "metrics: {podMonitor: {enabled: true}, allowFrom: [{namespaceSelector: {}}]}"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := apiServer(t, map[string]any{
				"/api/v1/nodes": corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, Items: []corev1.Node{tt.node}},
				"/apis/resource.k8s.io/v1/deviceclasses": resourceapi.DeviceClassList{
					TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "DeviceClassList"}, Items: []resourceapi.DeviceClass{tt.class}},
			})
			_, notes, found := strings.Cut(dryRun(t, url, tt.values), "\nNOTES:\n")
			if !found || !strings.Contains(notes, "A first pod") {
				t.Fatalf("notes:\n%s", notes)
			}
			for _, warning := range []string{plugin, noLabel, class, metrics} {
				if strings.Contains(notes, warning) != (warning == tt.want) {
					t.Errorf("%q is there: %t, in:\n%s", warning, warning != tt.want, notes)
				}
			}
		})
	}
}

// TestNotes_FirstPod: what the notes have people create is right for the API server.
func TestNotes_FirstPod(t *testing.T) {
	_, notes, _ := strings.Cut(dryRun(t, apiServer(t, nil), ""), "and create it:\n")
	text, _, _ := strings.Cut(notes, "\nPartitions and shares: ")
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.TrimPrefix(line, "  "))
	}
	objects, err := decode(strings.Join(lines, ""))
	must(t, err)
	template := typed[resourceapi.ResourceClaimTemplate](t, objects, "ResourceClaimTemplate", "one-gpu")
	pod := typed[corev1.Pod](t, objects, "Pod", "one-gpu")
	if *pod.Spec.ResourceClaims[0].ResourceClaimTemplateName != template.Name || pod.Spec.Containers[0].Resources.Claims[0].Name != pod.Spec.ResourceClaims[0].Name {
		t.Errorf("pod %+v, template %s", pod.Spec, template.Name)
	}
}

// TestWebhook_KeepsCertificate: with a cluster the chart takes the certificate that is there if it is for the host that the API server
// calls, and makes one else. Pods that run with the one before are called until they have the new one.
func TestWebhook_KeepsCertificate(t *testing.T) {
	const annotation, service, address = "gpu.cleave.dev/certificate-hosts", "cleave-webhook." + namespace + ".svc", "192.0.2.1"
	const values, onHost = "webhook: {enabled: true}", "webhook: {enabled: true, hostNetwork: true, hostAddress: " + address + "}"
	secret := func(hosts string) *corev1.Secret {
		s := &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{Name: "cleave-webhook-tls", Namespace: namespace, Labels: map[string]string{"app.kubernetes.io/managed-by": "Helm"},
				Annotations: map[string]string{"meta.helm.sh/release-name": "cleave", "meta.helm.sh/release-namespace": namespace}},
			Data: map[string][]byte{"ca.crt": []byte("authority"), "tls.crt": []byte("certificate"), "tls.key": []byte("key")}}
		if hosts != "" {
			s.Annotations[annotation] = hosts
		}
		return s
	}
	for name, tt := range map[string]struct {
		values string
		have   *corev1.Secret
		kept   bool
		hosts  string // of the Secret afterwards
	}{
		"none":                       {values, nil, false, service},
		"of a chart before":          {values, secret(""), true, service},
		"the same":                   {values, secret(service), true, service},
		"another release's":          {values, secret("other.svc"), false, service},
		"none, on the host":          {onHost, nil, false, service + "," + address},
		"of one before, on the host": {onHost, secret(""), false, service + "," + address},
		"no longer a Service":        {onHost, secret(service), false, service + "," + address},
		"the same address":           {onHost, secret(service + "," + address), true, service + "," + address},
		"another address":            {onHost, secret(service + ",192.0.2.11"), false, service + "," + address},
		"no longer on the host":      {values, secret(service + "," + address), true, service + "," + address},
	} {
		objects := map[string]any{}
		if tt.have != nil {
			objects["/api/v1/namespaces/"+namespace+"/secrets/cleave-webhook-tls"] = tt.have
		}
		out := dryRun(t, apiServer(t, objects), tt.values)
		if kept, made := strings.Contains(out, "caBundle: YXV0aG9yaXR5"), strings.Contains(out, "caBundle: LS0t"); kept != tt.kept || made == tt.kept {
			t.Errorf("%s: the certificate is kept: %t, made anew: %t", name, kept, made)
		}
		_, bundle, _ := strings.Cut(out, "caBundle: ")
		trusted, err := base64.StdEncoding.DecodeString(strings.Fields(bundle + " none")[0])
		if before := bytes.HasSuffix(trusted, []byte("authority")); err != nil || before != (tt.have != nil) {
			t.Errorf("%s: pods that run are trusted: %t (%v)", name, before, err)
		}
		if want := annotation + ": \"" + tt.hosts + "\"\n"; !strings.Contains(out, want) {
			t.Errorf("%s: there is no %s", name, want)
		}
	}
}

// TestWebhook_HostNetworkUpdates: an old pod makes room for a new one where every node that may have one has one.
func TestWebhook_HostNetworkUpdates(t *testing.T) {
	const values = "webhook: {enabled: true, hostNetwork: true, tls: {from: secret}}"
	strategy := typed[appsv1.Deployment](t, mustRender(t, values), "Deployment", "cleave-webhook").Spec.Strategy
	want := appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: new(intstr.FromInt32(0)), MaxUnavailable: new(intstr.FromInt32(1))}}
	if diff := cmp.Diff(want, strategy); diff != "" {
		t.Errorf("strategy (-want +got):\n%s", diff)
	}
}
