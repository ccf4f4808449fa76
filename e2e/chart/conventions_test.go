// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// everything turns all parts of the chart on.
const everything = `
webhook: {enabled: true, tls: {from: cert-manager}}
scheduler: {enabled: true}
dashboard: {enabled: true}
repack: {enabled: true}
metrics: {podMonitor: {enabled: true}, grafanaDashboard: {enabled: true}, prometheusRule: {enabled: true}}
resourceQuota: {enabled: true}
openshift: {enabled: true}
`

// workloadOf is what makes a component's pods: their labels, annotations and spec, and the selector that finds them.
type workloadOf struct {
	template corev1.PodTemplateSpec
	selector map[string]string
}

// workloads are those of all components, by component.
func workloads(t *testing.T, objects []*unstructured.Unstructured) map[string]workloadOf {
	t.Helper()
	all := map[string]workloadOf{}
	for _, o := range objects {
		switch o.GetKind() {
		case "DaemonSet":
			var set appsv1.DaemonSet
			must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &set))
			all[set.Labels["app.kubernetes.io/component"]] = workloadOf{set.Spec.Template, set.Spec.Selector.MatchLabels}
		case "Deployment":
			var d appsv1.Deployment
			must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d))
			all[d.Labels["app.kubernetes.io/component"]] = workloadOf{d.Spec.Template, d.Spec.Selector.MatchLabels}
		}
	}
	if len(all) != 6 {
		t.Fatalf("there are %d components, want 6", len(all))
	}
	return all
}

// Every object says what manages it and which chart it is of. Pods do not: a new chart of the same program restarts none.
func TestRender_ConventionalLabels(t *testing.T) {
	objects := mustRender(t, everything)
	for _, o := range objects {
		if l := o.GetLabels(); l["app.kubernetes.io/managed-by"] != "Helm" || !strings.HasPrefix(l["helm.sh/chart"], "cleave-") {
			t.Errorf("%s %s has the labels %v", o.GetKind(), o.GetName(), l)
		}
	}
	for component, w := range workloads(t, objects) {
		if w.template.Labels["helm.sh/chart"] != "" {
			t.Errorf("pods of %s have the chart's version", component)
		}
		if !labels.SelectorFromSet(w.selector).Matches(labels.Set(w.template.Labels)) {
			t.Errorf("the selector %v of %s does not find its pods: %v", w.selector, component, w.template.Labels)
		}
	}
}

// TestRender_PodMetadata: additional labels and annotations are there, and replace none of the chart's.
func TestRender_PodMetadata(t *testing.T) {
	values := everything
	for _, component := range []string{"plugin", "mps", "webhook", "scheduler", "dashboard", "repack"} {
		more := "podLabels: {team: gpus, app.kubernetes.io/component: other}, podAnnotations: {note: x, checksum/config: none}"
		if strings.Contains(values, "\n"+component+": {") {
			values = strings.Replace(values, "\n"+component+": {", "\n"+component+": {"+more+", ", 1)
			continue
		}
		values += component + ": {" + more + "}\n"
	}
	for component, w := range workloads(t, mustRender(t, values)) {
		if l := w.template.Labels; l["team"] != "gpus" || l["app.kubernetes.io/component"] != component {
			t.Errorf("pods of %s have the labels %v", component, l)
		}
		if a := w.template.Annotations; a["note"] != "x" || component == "scheduler" && a["checksum/config"] == "none" {
			t.Errorf("pods of %s have the annotations %v", component, a)
		}
	}
}

func TestRender_NameOverride(t *testing.T) {
	objects := mustRender(t, "nameOverride: gpus\n"+everything)
	for component, w := range workloads(t, objects) {
		if w.selector["app.kubernetes.io/name"] != "gpus" || w.template.Labels["app.kubernetes.io/name"] != "gpus" {
			t.Errorf("%s: selector %v, labels %v", component, w.selector, w.template.Labels)
		}
	}
	if find(objects, "DaemonSet", "cleave-gpus-plugin") == nil {
		t.Errorf("there is no cleave-gpus-plugin: %v", kindsAndNames(objects))
	}
}

// TestRender_Elsewhere: pods that are not on each GPU node are spread, and go where the values say.
func TestRender_Elsewhere(t *testing.T) {
	const zone = "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: Exists}]}]}}}"
	type place struct{ Preferred, Required, Nodes int }
	tests := map[string]struct {
		values, component string
		want              place
		class             string
	}{
		"webhook":             {everything, "webhook", place{Preferred: 1}, "system-cluster-critical"},
		"scheduler":           {everything, "scheduler", place{Preferred: 1}, "system-cluster-critical"},
		"dashboard":           {everything, "dashboard", place{}, ""},
		"repack":              {everything, "repack", place{}, ""},
		"in place of another": {strings.Replace(everything, "scheduler: {", "scheduler: {name: default-scheduler, ", 1), "scheduler", place{Required: 1}, "system-cluster-critical"},
		"one webhook":         {strings.Replace(everything, "webhook: {", "webhook: {replicas: 1, ", 1), "webhook", place{Preferred: 1}, "system-cluster-critical"},
		"webhook by zone":     {strings.Replace(everything, "webhook: {", "webhook: {priorityClassName: mine, "+zone+", ", 1), "webhook", place{Preferred: 1, Nodes: 1}, "mine"},
		"dashboard by zone":   {strings.Replace(everything, "dashboard: {", "dashboard: {"+zone+", ", 1), "dashboard", place{Nodes: 1}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := workloads(t, mustRender(t, tt.values))[tt.component].template.Spec
			var got place
			if a := spec.Affinity; a != nil && a.PodAntiAffinity != nil {
				got.Preferred = len(a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
				got.Required = len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
			}
			if a := spec.Affinity; a != nil && a.NodeAffinity != nil {
				got.Nodes = len(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || spec.PriorityClassName != tt.class {
				t.Errorf("class %s, affinity (-want +got):\n%s", spec.PriorityClassName, diff)
			}
		})
	}
}

func TestRender_WebhookBudget(t *testing.T) {
	budget := typed[policyv1.PodDisruptionBudget](t, mustRender(t, everything), "PodDisruptionBudget", "cleave-webhook")
	pods := workloads(t, mustRender(t, everything))["webhook"].template.Labels
	if budget.Spec.MaxUnavailable.IntValue() != 1 || !labels.SelectorFromSet(budget.Spec.Selector.MatchLabels).Matches(labels.Set(pods)) {
		t.Errorf("budget %+v for pods with %v", budget.Spec, pods)
	}
	one := strings.Replace(everything, "webhook: {", "webhook: {replicas: 1, ", 1)
	if find(mustRender(t, one), "PodDisruptionBudget", "cleave-webhook") != nil {
		t.Error("a single pod has a budget, which keeps its node from being drained")
	}
}

func TestRender_ResourceQuota(t *testing.T) {
	objects := mustRender(t, everything)
	if find(mustRender(t, ""), "ResourceQuota", "cleave-critical-pods") != nil {
		t.Error("there is a quota by default")
	}
	quota := typed[corev1.ResourceQuota](t, objects, "ResourceQuota", "cleave-critical-pods")
	covered := map[string]bool{"": true} // the cluster's default needs none
	for _, class := range quota.Spec.ScopeSelector.MatchExpressions[0].Values {
		covered[class] = true
	}
	for component, w := range workloads(t, objects) {
		if !covered[w.template.Spec.PriorityClassName] {
			t.Errorf("pods of %s have the class %s, which the quota does not admit", component, w.template.Spec.PriorityClassName)
		}
	}
	if n := quota.Spec.Hard.Pods().Value(); n < 1000 {
		t.Errorf("it admits %d pods, less than a large cluster has", n)
	}
}

// TestRender_OpenShift: privileged pods have the constraint of that name, and all others no user that the default one refuses.
func TestRender_OpenShift(t *testing.T) {
	objects := mustRender(t, everything)
	bound := map[string]bool{}
	binding := typed[rbacv1.RoleBinding](t, objects, "RoleBinding", "cleave-privileged")
	if binding.RoleRef.Name != "system:openshift:scc:privileged" {
		t.Errorf("the binding is to %+v", binding.RoleRef)
	}
	for _, s := range binding.Subjects {
		bound[s.Name] = true
	}
	for component, w := range workloads(t, objects) {
		spec := w.template.Spec
		privileged := component == "plugin" || component == "mps"
		if bound[spec.ServiceAccountName] != privileged {
			t.Errorf("%s: bound to the constraint: %t", component, !privileged)
		}
		if c := spec.SecurityContext; !privileged && (c.RunAsUser != nil || c.RunAsGroup != nil || c.FSGroup != nil || !*c.RunAsNonRoot) {
			t.Errorf("%s: pod %+v", component, c)
		}
	}
	test := typed[corev1.Pod](t, objects, "Pod", "cleave-test")
	if test.Spec.SecurityContext.RunAsUser != nil {
		t.Error("the test has a user")
	}
	// Elsewhere the users stay.
	elsewhere := workloads(t, mustRender(t, strings.Replace(everything, "openshift: {enabled: true}", "", 1)))
	for _, component := range []string{"webhook", "scheduler", "dashboard", "repack"} {
		if c := elsewhere[component].template.Spec.SecurityContext; c.RunAsUser == nil || *c.RunAsUser == 0 {
			t.Errorf("%s: pod %+v", component, c)
		}
	}
}

// TestRender_MisplacedAreNoValues: the values that the hints name exist, and those of the hints do not.
func TestRender_MisplacedAreNoValues(t *testing.T) {
	known := map[string]bool{}
	for _, v := range documentedValues(t) {
		known[v.path] = true
	}
	text := string(readFile(t, chartDir+"/templates/misplaced.yaml"))
	hints := 0
	for line := range strings.Lines(text) {
		quoted := strings.Split(line, `"`)
		if !strings.HasPrefix(line, "  ") || len(quoted) != 5 {
			continue
		}
		hints++
		if known[quoted[1]] {
			t.Errorf("%s is a value", quoted[1])
		}
		for _, instead := range strings.Fields(strings.NewReplacer(",", "", " or ", " ", "(GPU nodes)", "").Replace(quoted[3])) {
			if !known[instead] {
				t.Errorf("the hint for %s names %s, which is no value", quoted[1], instead)
			}
		}
	}
	if hints < 10 {
		t.Errorf("only %d hints were read", hints)
	}
}

// TestRender_WebhookCertificate: without a cluster there is no certificate to keep, and each render would make another.
func TestRender_WebhookCertificate(t *testing.T) {
	_, err := render(t, "webhook: {enabled: true}")
	if err == nil || !strings.Contains(err.Error(), "Set webhook.tls.from to cert-manager or secret") {
		t.Errorf("got %v", err)
	}
	for _, values := range []string{everything, "webhook: {enabled: true, tls: {from: secret, caBundle: aGVsbG8=}}"} {
		if diff := cmp.Diff(mustRender(t, values), mustRender(t, values)); diff != "" {
			t.Errorf("%s: two renders differ:\n%s", values, diff)
		}
	}
	// On the host network the API server calls an address.
	for values, want := range map[string]string{"": "", "hostNetwork: true, hostAddress: 192.0.2.1,": "192.0.2.1", "hostNetwork: true, hostAddress: 'fd00::1',": "fd00::1",
		"hostNetwork: true, hostAddress: '[fd00::1]',": "fd00::1"} {
		objects := mustRender(t, strings.Replace(everything, "webhook: {", "webhook: {"+values, 1))
		got, _, err := unstructured.NestedStringSlice(find(objects, "Certificate", "cleave-webhook").Object, "spec", "ipAddresses")
		if strings.Join(got, " ") != want || err != nil {
			t.Errorf("%s: the certificate's addresses: got %q, want %q: %v", values, got, want, err)
		}
		client := typed[admissionregistrationv1.ValidatingWebhookConfiguration](t, objects, "ValidatingWebhookConfiguration", "cleave-webhook").Webhooks[0].ClientConfig
		address := ""
		if client.URL != nil {
			address = *client.URL
		}
		if u, err := url.Parse(address); err != nil || u.Hostname() != want {
			t.Errorf("%s: the API server calls %v, want %q: %v", values, u, want, err)
		}
	}
}

// TestRender_WebhookCA: the certificate's issuer signs with a CA that lasts. One that signed itself would be another CA at each renewal,
// which the API server trusts before the pods have it.
func TestRender_WebhookCA(t *testing.T) {
	got := map[string]any{}
	for _, o := range mustRender(t, everything) {
		if strings.HasPrefix(o.GetAPIVersion(), "cert-manager.io/") {
			got[o.GetKind()+" "+o.GetName()] = o.Object["spec"]
		}
	}
	type object = map[string]any
	want := object{
		"Issuer cleave-webhook": object{"selfSigned": object{}},
		"Certificate cleave-webhook-ca": object{"isCA": true, "commonName": "cleave-webhook-ca", "secretName": "cleave-webhook-tls-ca", "duration": "87600h",
			"issuerRef": object{"kind": "Issuer", "name": "cleave-webhook"}},
		"Issuer cleave-webhook-ca": object{"ca": object{"secretName": "cleave-webhook-tls-ca"}},
		"Certificate cleave-webhook": object{"secretName": "cleave-webhook-tls", "issuerRef": object{"kind": "Issuer", "name": "cleave-webhook-ca"},
			"dnsNames": []any{"cleave-webhook.cleave-system.svc", "cleave-webhook.cleave-system.svc.cluster.local"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cert-manager's objects (-want +got):\n%s", diff)
	}
}

// TestRender_WebhookConditions: the webhook is asked about what the policy is. Updates of finalizers, which schedulers and controllers make of
// claims of all drivers, do not wait for its pods.
func TestRender_WebhookConditions(t *testing.T) {
	objects := mustRender(t, everything)
	policy := typed[admissionregistrationv1.ValidatingAdmissionPolicy](t, objects, "ValidatingAdmissionPolicy", "cleave-claims").Spec
	webhook := typed[admissionregistrationv1.ValidatingWebhookConfiguration](t, objects, "ValidatingWebhookConfiguration", "cleave-webhook").Webhooks[0]
	if diff := cmp.Diff(policy.MatchConditions, webhook.MatchConditions); diff != "" {
		t.Errorf("conditions (-policy +webhook):\n%s", diff)
	}
}
