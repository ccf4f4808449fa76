// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"slices"
	"strings"
	"testing"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

const schedulerName = "cleave-scheduler"

// TestRender_Off: what a cluster needs no more than once, or not at all, is off by default.
func TestRender_Off(t *testing.T) {
	for _, o := range kindsAndNames(mustRender(t, "")) {
		if strings.Contains(o, "scheduler") || strings.Contains(o, "dashboard") {
			t.Errorf("%s is installed by default", o)
		}
	}
}

func TestScheduler_Configuration(t *testing.T) {
	for values, want := range map[string]map[string]any{
		"scheduler: {enabled: true}": {
			"strategy": "pack", "strategies": map[string]any{}, "candidates": float64(4), "drivers": []any{"gpu.cleave.dev"},
		},
		matrix["scheduler, set"]: {
			"strategy": "spread", "strategies": map[string]any{"timeslice.cleave.dev": "pack"}, "candidates": float64(8), "drivers": []any{"gpu.nvidia.com"},
		},
	} {
		objects := mustRender(t, values)
		var config map[string]any
		must(t, yaml.UnmarshalStrict([]byte(typed[corev1.ConfigMap](t, objects, "ConfigMap", schedulerName).Data["config.yaml"]), &config))
		profile := config["profiles"].([]any)[0].(map[string]any)
		// GPUPacking says which nodes are left before DynamicResources looks at devices, and reads what that reserved. Its
		// PostFilter lets a pod see all nodes, and that of DynamicResources takes allocations back, before pods are evicted.
		packing, resources := map[string]any{"name": "GPUPacking"}, map[string]any{"name": "CandidateDynamicResources"}
		preemption := map[string]any{"name": "DevicePreemption"}
		plugins := map[string]any{
			"multiPoint": map[string]any{
				"enabled":  []any{map[string]any{"name": "GPUPacking", "weight": float64(60)}, map[string]any{"name": "CandidateDynamicResources", "weight": float64(2)}, preemption},
				"disabled": []any{map[string]any{"name": "DynamicResources"}, map[string]any{"name": "DefaultPreemption"}},
			},
			"postFilter":         map[string]any{"enabled": []any{packing, resources, preemption}},
			"podGroupPostFilter": map[string]any{"enabled": []any{resources, preemption}},
			"reserve":            map[string]any{"enabled": []any{resources}},
		}
		var names []any
		for _, one := range config["profiles"].([]any) {
			profile := one.(map[string]any)
			names = append(names, profile["schedulerName"])
			if diff := cmp.Diff(plugins, profile["plugins"]); diff != "" {
				t.Errorf("%s: plugins (-want +got):\n%s", values, diff)
			}
			args := profile["pluginConfig"].([]any)[0].(map[string]any)["args"]
			if diff := cmp.Diff(want, args); diff != "" {
				t.Errorf("%s: arguments (-want +got):\n%s", values, diff)
			}
		}
		// In place of the first it has to schedule the pods that name the second, which nobody else does.
		profiles := map[bool][]any{false: {schedulerName}, true: {"default-scheduler", schedulerName}}
		if diff := cmp.Diff(profiles[profile["schedulerName"] == "default-scheduler"], names); diff != "" {
			t.Errorf("%s: profiles (-want +got):\n%s", values, diff)
		}
		// In place of the first it has the lease of the cluster's own scheduler.
		lease := map[string]any{"leaderElect": true, "resourceNamespace": namespace, "resourceName": schedulerName}
		if profile["schedulerName"] == "default-scheduler" {
			lease["resourceNamespace"], lease["resourceName"] = "kube-system", "kube-scheduler"
		}
		if diff := cmp.Diff(lease, config["leaderElection"]); diff != "" {
			t.Errorf("%s: leader election (-want +got):\n%s", values, diff)
		}
		role := typed[rbacv1.Role](t, objects, "Role", schedulerName+"-lease")
		if role.Namespace != lease["resourceNamespace"] || role.Rules[1].ResourceNames[0] != lease["resourceName"] {
			t.Errorf("%s: the role in %s, %+v, is not for the lease %+v", values, role.Namespace, role.Rules, lease)
		}
	}
}

// TestScheduler_Leases: whoever has the account of the scheduler cannot take another's lease: no role for all namespaces has leases.
func TestScheduler_Leases(t *testing.T) {
	for _, values := range []string{matrix["scheduler"], matrix["scheduler, set"]} {
		objects := mustRender(t, values)
		bound := 0
		for _, o := range objects {
			if o.GetKind() != "ClusterRoleBinding" || !strings.Contains(o.GetName(), "scheduler") {
				continue
			}
			bound++
			ref := typed[rbacv1.ClusterRoleBinding](t, objects, "ClusterRoleBinding", o.GetName()).RoleRef
			if ref.Name == "system:volume-scheduler" { // Kubernetes' own: volumes, claims for them and their classes
				continue
			}
			for _, rule := range typed[rbacv1.ClusterRole](t, objects, "ClusterRole", ref.Name).Rules {
				if slices.Contains(rule.APIGroups, "coordination.k8s.io") || slices.Contains(rule.APIGroups, "*") {
					t.Errorf("%s: %s has the rule %+v", values, ref.Name, rule)
				}
			}
		}
		if bound == 0 {
			t.Errorf("%s: no ClusterRole is bound", values)
		}
	}
}

func TestScheduler_Deployment(t *testing.T) {
	d := typed[appsv1.Deployment](t, mustRender(t, "image: {repository: r/cleave, tag: v9}\nscheduler: {enabled: true}"), "Deployment", schedulerName)
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]
	if c.Image != "r/cleave-scheduler:v9" || c.SecurityContext.ReadOnlyRootFilesystem == nil || !*c.SecurityContext.ReadOnlyRootFilesystem ||
		pod.SecurityContext.RunAsNonRoot == nil || !*pod.SecurityContext.RunAsNonRoot || c.LivenessProbe == nil || c.ReadinessProbe == nil {
		t.Errorf("container %+v", c)
	}
	if pod.AutomountServiceAccountToken != nil {
		t.Error("the scheduler has no token for the API server")
	}
	// A change of its configuration replaces the pods.
	other := typed[appsv1.Deployment](t, mustRender(t, "scheduler: {enabled: true, strategy: spread}"), "Deployment", schedulerName)
	if cmp.Equal(d.Spec.Template.Annotations, other.Spec.Template.Annotations) {
		t.Errorf("annotations are the same for two strategies: %v", other.Spec.Template.Annotations)
	}
}

// TestScheduler_Replicas: the pods of a scheduler that is the only one must be able to schedule each other.
func TestScheduler_Replicas(t *testing.T) {
	for values, want := range map[string]struct{ budget, apart, surge bool }{
		"scheduler: {enabled: true}":                                       {budget: true},
		"scheduler: {enabled: true, replicas: 1}":                          {surge: true},
		"scheduler: {enabled: true, name: default-scheduler}":              {budget: true, apart: true},
		"scheduler: {enabled: true, name: default-scheduler, replicas: 1}": {surge: true},
	} {
		objects := mustRender(t, values)
		d := typed[appsv1.Deployment](t, objects, "Deployment", schedulerName)
		affinity := d.Spec.Template.Spec.Affinity.PodAntiAffinity
		terms := affinity.RequiredDuringSchedulingIgnoredDuringExecution
		for _, p := range affinity.PreferredDuringSchedulingIgnoredDuringExecution {
			terms = append(terms, p.PodAffinityTerm)
		}
		if want.apart != (len(affinity.RequiredDuringSchedulingIgnoredDuringExecution) == 1) || len(terms) != 1 ||
			!cmp.Equal(terms[0].LabelSelector, d.Spec.Selector) || terms[0].TopologyKey != corev1.LabelHostname {
			t.Errorf("%s: anti-affinity %+v", values, affinity)
		}
		if r := d.Spec.Strategy.RollingUpdate; want.surge != (r == nil) || r != nil && (r.MaxSurge.IntValue() != 0 || r.MaxUnavailable.IntValue() != 1) {
			t.Errorf("%s: rolling update %+v", values, r)
		}
		budget := slices.Contains(kindsAndNames(objects), "PodDisruptionBudget "+schedulerName)
		if budget != want.budget {
			t.Errorf("%s: a PodDisruptionBudget: %t", values, budget)
		} else if budget {
			b := typed[policyv1.PodDisruptionBudget](t, objects, "PodDisruptionBudget", schedulerName)
			if b.Spec.MaxUnavailable.IntValue() != 1 || !cmp.Equal(b.Spec.Selector, d.Spec.Selector) {
				t.Errorf("%s: PodDisruptionBudget %+v", values, b.Spec)
			}
		}
	}
}

// TestScheduler_OwnResources: extended resources for GPUs that the values give names of their own are known to the policies that look at
// pods: the one that assigns them to the scheduler, and the warnings.
func TestScheduler_OwnResources(t *testing.T) {
	objects := mustRender(t, "scheduler: {enabled: true}\n"+
		"deviceClasses: {mps: {extendedResourceName: example.com/mps}, migProfiles: {extendedResourcePrefix: example.com/mig-}}")
	expressions := map[string]string{}
	for _, c := range typed[admissionregistrationv1.MutatingAdmissionPolicy](t, objects, "MutatingAdmissionPolicy", schedulerName).Spec.MatchConditions {
		expressions[c.Name] = c.Expression
	}
	for _, v := range typed[admissionregistrationv1.ValidatingAdmissionPolicy](t, objects, "ValidatingAdmissionPolicy", "cleave-pod-warnings").Spec.Variables {
		expressions[v.Name] = "(" + v.Expression + ").size() > 0"
	}
	const claims = ", resourceClaims: [{name: gpu, resourceClaimName: gpu}]}"
	for pod, want := range map[string]struct{ gpus, twice, wasted bool }{
		"{containers: [{name: c}]}": {},
		"{containers: [{name: c, resources: {limits: {example.com/nic: '1'}}}]}":                                                                {},
		"{containers: [{name: c, resources: {limits: {nvidia.com/gpu: '1'}}}]}":                                                                 {gpus: true},
		"{containers: [{name: c, resources: {limits: {example.com/mps: '1'}}}]}":                                                                {gpus: true},
		"{containers: [{name: c}], initContainers: [{name: i, resources: {limits: {example.com/mig-1g.10gb: '1'}}}]}":                           {gpus: true},
		"{containers: [{name: c, resources: {limits: {example.com/mps: '1', example.com/mig-1g.10gb: '1'}}}]}":                                  {gpus: true, wasted: true},
		"{containers: [{name: c, resources: {claims: [{name: gpu}], limits: {example.com/nic: '1'}}}]" + claims:                                 {gpus: true},
		"{containers: [{name: c, resources: {claims: [{name: gpu}], limits: {example.com/mps: '1'}}}]" + claims:                                 {gpus: true, twice: true},
		"{containers: [{name: c, resources: {claims: [{name: gpu}]}}, {name: d, resources: {limits: {example.com/mig-1g.10gb: '1'}}}]" + claims: {gpus: true},
	} {
		for name, want := range map[string]bool{"gpus": want.gpus, "twice": want.twice, "wasted": want.wasted} {
			if got := holds(t, expressions[name], pod); got != want {
				t.Errorf("%s: %s is %t, want %t: %s", pod, name, got, want, expressions[name])
			}
		}
	}
}

// holds evaluates a condition of a policy, in CEL as the API server has it, for the spec of a pod, whose containers are a variable, too.
func holds(t *testing.T, condition, spec string) bool {
	t.Helper()
	pod := map[string]any{}
	must(t, yaml.Unmarshal([]byte(spec), &pod))
	containers, _ := pod["containers"].([]any)
	more, _ := pod["initContainers"].([]any)
	base := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).NewExpressionsEnv()
	language, err := base.Extend(celgo.Variable("object", celgo.DynType), celgo.Variable("variables", celgo.DynType))
	must(t, err)
	compiled, issues := language.Compile(condition)
	must(t, issues.Err())
	program, err := language.Program(compiled)
	must(t, err)
	result, _, err := program.Eval(map[string]any{
		"object": map[string]any{"spec": pod}, "variables": map[string]any{"containers": slices.Concat(containers, more)},
	})
	must(t, err)
	return result.Value() == true
}
