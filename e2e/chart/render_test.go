// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/e2e/release"
)

// Paths from this directory.
const (
	source      = "../.."
	chartDir    = "../../deployments/helm/cleave"
	manifestDir = "../../deployments/manifests"
)

// namespace is where the chart is installed.
const namespace = release.Namespace

// helm runs Helm with values on its standard input, if there are any, and returns what it prints.
func helm(t testing.TB, values string, args ...string) (string, error) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(source, "bin", "helm")); err != nil {
		t.Skipf("Helm is not built (make helm): %v", err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), timeout) // clean-up needs it, too
	defer cancel()
	return release.Helm(ctx, source, values, args...)
}

// render gives the objects of the chart, tests included.
func render(t testing.TB, values string) ([]*unstructured.Unstructured, error) {
	t.Helper()
	text, err := helm(t, values, "template", "cleave", chartDir, "--namespace", namespace)
	if err != nil {
		return nil, err
	}
	return decode(text)
}

// mustRender is render for values that are right.
func mustRender(t testing.TB, values string) []*unstructured.Unstructured {
	t.Helper()
	objects, err := render(t, values)
	must(t, err)
	return objects
}

func decode(text string) ([]*unstructured.Unstructured, error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	var objects []*unstructured.Unstructured
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		o := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(document, &o.Object); err != nil {
			return nil, fmt.Errorf("%w in:\n%s", err, document)
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}

func find(objects []*unstructured.Unstructured, kind, name string) *unstructured.Unstructured {
	for _, o := range objects {
		if o.GetKind() == kind && o.GetName() == name {
			return o
		}
	}
	return nil
}

// typed is the object of a kind and name, converted strictly.
func typed[T any](t testing.TB, objects []*unstructured.Unstructured, kind, name string) *T {
	t.Helper()
	o := find(objects, kind, name)
	if o == nil {
		t.Fatalf("there is no %s %s", kind, name)
	}
	converted := new(T)
	must(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, converted, true))
	return converted
}

func podOfSet(t testing.TB, objects []*unstructured.Unstructured, name string) *corev1.PodSpec {
	t.Helper()
	return &typed[appsv1.DaemonSet](t, objects, "DaemonSet", name).Spec.Template.Spec
}

// kindsAndNames lists objects as "Kind name".
func kindsAndNames(objects []*unstructured.Unstructured) []string {
	var list []string
	for _, o := range objects {
		list = append(list, o.GetKind()+" "+o.GetName())
	}
	return list
}

// matrix is the chart's values in many ways, each accepted. Tests with a cluster hand the outcome to a real API server.
var matrix = withPlatforms(map[string]string{
	"defaults":              "",
	"capabilities":          "plugin: {privileged: false, runtimeClassName: nvidia}",
	"driver on the host":    "driver: {root: /, hostDirectories: [/usr]}",
	"driver container":      "driver: {root: /run/nvidia/driver}",
	"driver elsewhere":      "driver: {root: /home/kubernetes/bin/nvidia}",
	"no MPS":                "mps: {enabled: false}",
	"MPS without cgroups":   "mps: {cgroup: '', computeMode: keep, dir: /run/mps}",
	"host network":          "plugin: {hostNetwork: true, env: [{name: KUBERNETES_SERVICE_HOST, value: 10.0.0.1}], extraArgs: [--kube-api-qps=50]}",
	"other directories":     "kubelet: {dir: /var/lib/k0s/kubelet}\ncdi: {dir: /etc/cdi}",
	"every node":            "nodes: {match: [], tolerations: [], selector: {pool: gpus}}\npriorityClassName: ''",
	"metrics":               "metrics: {port: 9400, service: {enabled: false}, podMonitor: {enabled: true, interval: 1m, labels: {release: prometheus}}, grafanaDashboard: {enabled: true}, prometheusRule: {enabled: true, labels: {release: prometheus}}}",
	"network":               "networkPolicy: {apiServerPorts: [443, 6443]}",
	"notices":               "notices: {sources: [node, aws], lead: 2h, evictBefore: 60s}\nnetworkPolicy: {apiServerPorts: [6443]}",
	"no network policy":     "networkPolicy: {enabled: false}",
	"no admission":          "admission: {nodeRestriction: false, claims: {enabled: false}, warnings: {enabled: false}}",
	"classes may have many": "admission: {claims: {oneDevicePerRequest: []}}",
	"node labels":           "nodeLabels: apply",
	"node labels removed":   "nodeLabels: remove\nnvidiaCompatible: true",
	"clients":               "pauseClients: [nvidia.com/gpu.deploy.dcgm, nvidia.com/gpu.deploy.dcgm-exporter]",
	"clients, node labels":  "nodeLabels: apply\npauseClients: [example.com/monitor]",
	"NVIDIA-compatible":     "nvidiaCompatible: true",
	"consumable shares":     "nvidiaCompatible: true\nnvidiaConsumableShares: true",
	"whole GPUs alone":      "nvidiaCompatible: true\npolicies: {default: {rules: [{tiers: [exclusive]}]}}",
	"webhook":               "webhook: {enabled: true, tls: {from: cert-manager}}",
	"webhook, own secret":   "webhook: {enabled: true, replicas: 1, failurePolicy: Fail, tls: {from: secret, secretName: mine, caBundle: aGVsbG8=}, tolerations: [{operator: Exists}]}",
	"scheduler":             "scheduler: {enabled: true}",
	"scheduler, set":        "nvidiaCompatible: true\nscheduler: {enabled: true, name: default-scheduler, replicas: 1, strategy: spread, strategies: {timeslice.cleave.dev: pack}, candidates: 8, image: {repository: r/s, tag: v2}, hostNetwork: true, port: 10300, tolerations: [{operator: Exists}]}",
	"webhook on the host":   "webhook: {enabled: true, hostNetwork: true, port: 9443, tls: {from: secret}}",
	"dashboard":             "dashboard: {enabled: true}",
	"repack":                "repack: {enabled: true}",
	"repack at night":       "nvidiaCompatible: true\nnetworkPolicy: {apiServerPorts: [6443]}\nrepack: {enabled: true, every: 1h, windows: ['Mon-Fri 22:00-06:00', 'Sat,Sun 00:00-24:00'], timeZone: Europe/Berlin, evictionsPerHour: 0, evictionTimeout: 5m, replacementTimeout: 30m, priorityClassName: low, env: [{name: A, value: b}]}",
	"OpenShift":             "openshift: {enabled: true}\nscheduler: {enabled: true}\ndashboard: {enabled: true}",
	"GKE":                   "resourceQuota: {enabled: true, pods: 200}\nscheduler: {enabled: true}\nmps: {enabled: false}",
	"pods elsewhere":        "scheduler: {enabled: true, affinity: {podAntiAffinity: {}}, podLabels: {a: b}}\ndashboard: {enabled: true, nodeSelector: {pool: tools}, podAnnotations: {a: b}}\nplugin: {podLabels: {a: b}, podAnnotations: {c: d}}",
	"dashboard for some":    "dashboard: {enabled: true, port: 9090, allowFrom: [{podSelector: {matchLabels: {app: ingress}}, namespaceSelector: {}}, {podSelector: {matchExpressions: [{key: app, operator: In, values: [a]}]}}, {ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}], allowedHosts: [gpus.example.com], env: [{name: A, value: b}], tolerations: [{operator: Exists}]}\nnetworkPolicy: {apiServerPorts: [6443]}",
	"no classes":            "deviceClasses: {gpu: {enabled: false}, mig: {enabled: false}, timeSlice: {enabled: false}, mps: {enabled: false}, migTimeSlice: {enabled: false}, migMPS: {enabled: false}, migProfiles: {enabled: false}}",
	"other resources":       "deviceClasses: {gpu: {extendedResourceName: example.com/gpu}, timeSlice: {extendedResourceName: ''}, migProfiles: {boards: [A30], disabled: [1g.6gb+me], extendedResourcePrefix: ''}}\nscheduler: {enabled: true}",
	"policies": `
policies:
  default: {rules: [{tiers: [exclusive, mig]}]}
  inference:
    rules:
      - match: {indexes: [0]}
        tiers: [mps]
        mps: {shares: 20, memory: {minimum: 1Gi}}
      - tiers: [mig]
  text: |
    # with a comment
    apiVersion: gpu.cleave.dev/v1alpha1
    kind: NodePolicy
    rules: [{tiers: [timeSlice]}]
`,
	"image": "image: {repository: registry.local:5000/cleave, digest: 'sha256:" + strings.Repeat("0", 64) + "', pullPolicy: Always, pullSecrets: [{name: registry}]}",
	"volumes": `
fullnameOverride: gpus
plugin:
  resources: {limits: {memory: 256Mi}}
  extraVolumes: [{name: more, emptyDir: {}}]
  extraVolumeMounts: [{name: more, mountPath: /more}]
mps:
  extraVolumes: [{name: more, emptyDir: {}}]
  extraVolumeMounts: [{name: more, mountPath: /more}]
`,
})

func TestChart_Lint(t *testing.T) {
	for name, values := range matrix {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := helm(t, values, "lint", "--strict", "--quiet", chartDir, "--namespace", namespace); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRender_Values(t *testing.T) {
	for name, values := range matrix {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			objects := mustRender(t, values)
			seen := map[string]bool{}
			for _, o := range objects {
				id := o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
				if seen[id] {
					t.Errorf("%s is there twice", id)
				}
				seen[id] = true
				if o.GetLabels()["app.kubernetes.io/name"] != "cleave" || o.GetLabels()["app.kubernetes.io/instance"] != "cleave" {
					t.Errorf("%s has the labels %v", id, o.GetLabels())
				}
			}
			full := "cleave"
			if strings.Contains(values, "fullnameOverride") {
				full = "gpus"
			}
			checkPods(t, objects, full+"-plugin")
			if !strings.Contains(values, "mps: {enabled: false}") {
				checkPods(t, objects, full+"-mps")
			}
		})
	}
}

// checkPods checks that what the pods of a DaemonSet mount is there, once.
func checkPods(t *testing.T, objects []*unstructured.Unstructured, name string) {
	pod := podOfSet(t, objects, name)
	if find(objects, "ServiceAccount", pod.ServiceAccountName) == nil {
		t.Errorf("%s has the ServiceAccount %s, which is not there", name, pod.ServiceAccountName)
	}
	volumes, used := map[string]bool{}, map[string]bool{}
	for _, v := range pod.Volumes {
		if volumes[v.Name] {
			t.Errorf("%s has the volume %s twice", name, v.Name)
		}
		volumes[v.Name] = true
	}
	paths := map[string]bool{}
	for _, m := range pod.Containers[0].VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("%s mounts %s, which is no volume", name, m.Name)
		}
		if paths[m.MountPath] {
			t.Errorf("%s mounts at %s twice", name, m.MountPath)
		}
		used[m.Name], paths[m.MountPath] = true, true
	}
	if diff := cmp.Diff(volumes, used); diff != "" {
		t.Errorf("volumes of %s (-there +mounted):\n%s", name, diff)
	}
}

func TestRender_Disabled(t *testing.T) {
	tests := map[string]struct {
		values   string
		gone     []string // "Kind name"
		stays    []string
		contains string
	}{
		"MPS":            {values: matrix["no MPS"], gone: []string{"DaemonSet cleave-mps", "ServiceAccount cleave-mps", "NetworkPolicy cleave-mps"}, stays: []string{"DeviceClass mps.cleave.dev"}},
		"network policy": {values: matrix["no network policy"], gone: []string{"NetworkPolicy cleave-plugin", "NetworkPolicy cleave-mps"}},
		"admission": {values: matrix["no admission"], gone: []string{
			"ValidatingAdmissionPolicy cleave-resourceslices", "ValidatingAdmissionPolicyBinding cleave-resourceslices",
			"ValidatingAdmissionPolicy cleave-claim-status", "ValidatingAdmissionPolicy cleave-claims",
			"ValidatingAdmissionPolicy cleave-claim-warnings", "ValidatingAdmissionPolicyBinding cleave-pod-warnings", "ValidatingAdmissionPolicy cleave-mps-warnings",
		}},
		"classes": {values: matrix["no classes"], gone: []string{"DeviceClass gpu.cleave.dev", "DeviceClass mig-1g.10gb.cleave.dev", "Pod cleave-test", "ResourceClaimTemplate cleave-test", "ValidatingAdmissionPolicyBinding cleave-mps-warnings"}},
		"boards": {values: matrix["other resources"], gone: []string{"DeviceClass mig-1g.10gb.cleave.dev", "DeviceClass mig-1g.6gb.me.cleave.dev"},
			stays: []string{"DeviceClass mig-1g.6gb.cleave.dev", "DeviceClass mig-2g.12gb.me.cleave.dev", "DeviceClass gpu.cleave.dev"}},
		"service": {values: matrix["metrics"], gone: []string{"Service cleave-metrics"}, stays: []string{"PodMonitor cleave-plugin", "ConfigMap cleave-dashboard", "PrometheusRule cleave"}},
	}
	defaults := strings.Join(kindsAndNames(mustRender(t, "")), "\n") + "\n"
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := strings.Join(kindsAndNames(mustRender(t, tt.values)), "\n") + "\n"
			for _, gone := range tt.gone {
				if !strings.Contains(defaults, gone+"\n") {
					t.Errorf("%s is not there by default: the test tests nothing", gone)
				}
				if strings.Contains(got, gone+"\n") {
					t.Errorf("%s is there", gone)
				}
			}
			for _, stays := range tt.stays {
				if !strings.Contains(got, stays+"\n") {
					t.Errorf("%s is not there", stays)
				}
			}
		})
	}
}

func TestRender_InvalidValues(t *testing.T) {
	for values, want := range map[string]string{
		"plugn: {}":                                                          "plugn",
		"plugin: {hostnetwork: true}":                                        "hostnetwork",
		"driver: {Root: auto}":                                               "Root",
		"image: {digest: latest}":                                            "/image/digest",
		"image: {pullPolicy: Sometimes}":                                     "/image/pullPolicy",
		"driver: {root: usr}":                                                "/driver/root",
		"driver: {hostDirectories: [usr]}":                                   "/driver/hostDirectories/0",
		"kubelet: {dir: kubelet}":                                            "/kubelet/dir",
		"mps: {dir: /run/cleave/a b}":                                        "/mps/dir",
		"mps: {computeMode: shared}":                                         "/mps/computeMode",
		"webhook: {failurePolicy: Maybe}":                                    "/webhook/failurePolicy",
		"plugin: {logVerbosity: high}":                                       "/plugin/logVerbosity",
		"plugin: {extraArgs: [v=4]}":                                         "/plugin/extraArgs/0",
		"metrics: {port: 0}":                                                 "/metrics/port",
		"metrics: {podMonitor: {interval: often}}":                           "/metrics/podMonitor/interval",
		"metrics: {grafanaDashboard: {labels: {grafana_dashboard: 1}}}":      "/metrics/grafanaDashboard/labels/grafana_dashboard",
		"networkPolicy: {apiServerPorts: [https]}":                           "/networkPolicy/apiServerPorts/0",
		"metrics: {allowFrom: [{}]}":                                         "/metrics/allowFrom/0",
		"metrics: {allowFrom: [{namespaceSelector: {matchLabel: {}}}]}":      "/metrics/allowFrom/0/namespaceSelector",
		"metrics: {allowFrom: [{podSelectors: {}}]}":                         "/metrics/allowFrom/0",
		"dashboard: {allowFrom: [{podSelector: {matchExpression: []}}]}":     "/dashboard/allowFrom/0/podSelector",
		"dashboard: {allowFrom: [{ipBlock: {cidr: 10.0.0.0/8, excpt: []}}]}": "/dashboard/allowFrom/0/ipBlock",
		"notices: {sources: [ibm]}":                                          "/notices/sources/0",
		"notices: {evictBefore: soon}":                                       "/notices/evictBefore",
		"nodes: {match: [{label: gpu}]}":                                     "/nodes/match/0",
		"nodes: {tolerations: [{effect: Never}]}":                            "/nodes/tolerations/0/effect",
		"deviceClasses: {timeslice: {enabled: false}}":                       "timeslice",
		"deviceClasses: {gpu: {extendedResourceName: gpu}}":                  "/deviceClasses/gpu/extendedResourceName",
		"deviceClasses: {migProfiles: {disabled: [1g.11gb]}}":                `there is no profile "1g.11gb"`,
		"deviceClasses: {migProfiles: {boards: [H100]}}":                     `there is no GPU model "H100"`,
		"policies: {'a/b': {rules: []}}":                                     "policies.a/b: must be named",
		"policies: {Default: {rules: []}}":                                   "policies.Default: must be named",
		"policies: {aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa: {rules: []}}": "aaa: must be named",
		"policies: {built-in: {rules: []}}":                               "policies.built-in: must be named",
		"policies: {default: [mig]}":                                      "/policies/default",
		"admission: {claims: {oneDevicePerRequest: everything}}":          "/admission/claims/oneDevicePerRequest",
		"nvidiaConsumableShares: true":                                    "with nvidiaCompatible=true only",
		"nodeLabels: off":                                                 "/nodeLabels",
		"nodeLabels: apply\nadmission: {nodeRestriction: false}":          "needs admission.nodeRestriction",
		"pauseClients: [a/b]\nadmission: {nodeRestriction: false}":        "needs admission.nodeRestriction",
		"pauseClients: [dcgm]":                                            "/pauseClients/0",
		"pauseClients: [kubernetes.io/hostname]":                          "/pauseClients/0",
		"pauseClients: [node.kubernetes.io/a]":                            "/pauseClients/0",
		"pauseClients: [nvidia.com/gpu.deploy.driver]":                    "/pauseClients/0",
		"pauseClients: [a/b]\nnodes: {selector: {a/b: 'true'}}":           "a/b selects the nodes of the plugin itself",
		"pauseClients: [a/b]\nnodes: {match: [{key: a/b, operator: In}]}": "a/b selects the nodes of the plugin itself",
		"policyLabels: []":                                                "/policyLabels",
		"policyLabels: [a b]":                                             "/policyLabels",
		"policyLabels: gpu.cleave.dev/policy":                             "/policyLabels",
		"scheduler: {strategy: binpack}":                                  "/scheduler/strategy",
		"scheduler: {strategies: {a: most}}":                              "/scheduler/strategies/a",
		"scheduler: {candidates: 0}":                                      "/scheduler/candidates",
		"scheduler: {profiles: []}":                                       "/scheduler",

		// Where other charts have a value, this one names its own.
		"tolerations: [{operator: Exists}]":    "there is no value tolerations: set nodes.tolerations",
		"nodeSelector: {pool: gpus}":           "nodes.selector",
		"resources: {limits: {cpu: 1}}":        "plugin.resources",
		"imagePullSecrets: [{name: registry}]": "image.pullSecrets",
		"affinity: {}":                         "nodes.match",
		"podAnnotations: {a: b}":               "plugin.podAnnotations",
		"replicaCount: 3":                      "webhook.replicas",
	} {
		t.Run(values, func(t *testing.T) {
			t.Parallel()
			if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want an error that says %q", err, want)
			}
		})
	}
}

func TestDeviceClasses_ConsumableShares(t *testing.T) {
	for values, want := range map[string]string{matrix["NVIDIA-compatible"]: `"gpu"`, matrix["consumable shares"]: `"timeslice"`} {
		class := typed[resourceapi.DeviceClass](t, mustRender(t, values), "DeviceClass", "gpu.nvidia.com")
		wanted := []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == ` + want,
		}}}
		if diff := cmp.Diff(wanted, class.Spec.Selectors); diff != "" {
			t.Errorf("%s: selectors (-want +got):\n%s", values, diff)
		}
	}
}

func TestChart_KubeVersion(t *testing.T) {
	const chart, scheduler = "chart requires kubeVersion", "scheduler.enabled needs Kubernetes 1.37"
	for _, tt := range []struct{ values, release, refused string }{
		{"", "1.33.9", chart}, {"", "1.34.0", ""}, {"", "1.35.4-eks-1", ""}, {"", "1.37.2", ""},
		{matrix["scheduler"], "1.36.9", scheduler}, {matrix["scheduler"], "1.37.0", ""}, {matrix["scheduler"], "1.38.1-eks-1", ""},
		{matrix["scheduler"], "1.39.0-alpha.1", scheduler + " or 1.38"}, {matrix["scheduler"], "1.40.2", scheduler + " or 1.38"}, {"", "1.40.2", ""},
	} {
		_, err := helm(t, tt.values, "template", "cleave", chartDir, "--kube-version", tt.release)
		if (tt.refused == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.refused) {
			t.Errorf("%s with %q: got %v, want the error %q", tt.release, tt.values, err, tt.refused)
		}
	}
}
