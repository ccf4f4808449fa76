// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// hostMounts are the directories of the host that a pod mounts, each with how.
func hostMounts(pod *corev1.PodSpec) map[string]string {
	mounts := map[string]string{}
	for _, m := range pod.Containers[0].VolumeMounts {
		for _, v := range pod.Volumes {
			if v.Name == m.Name && v.HostPath != nil {
				how := "written"
				if m.ReadOnly {
					how = "read"
				}
				if m.MountPropagation != nil {
					how += " " + string(*m.MountPropagation)
				}
				mounts[v.HostPath.Path] = how
			}
		}
	}
	return mounts
}

func TestPrivileges_HostPaths(t *testing.T) {
	plugin := map[string]string{
		"/var/lib/kubelet/plugins/gpu.cleave.dev": "written",
		"/var/lib/kubelet/plugins/gpu.nvidia.com": "written",
		"/var/lib/kubelet/plugins/_cleave":        "written",
		"/var/lib/kubelet/plugins_registry":       "written",
		"/var/lib/cleave":                         "written", // the hook program, for users of user namespaces
		"/var/run/cdi":                            "written",
		"/run/cleave/mps":                         "read",
		"/proc":                                   "read",
		"/dev":                                    "read", // for a driver's root without a dev, too
		"/sys/fs/cgroup":                          "read",
	}
	supervisor := map[string]string{"/run/cleave/mps": "written Bidirectional", "/sys/fs/cgroup": "written"}
	with := func(base map[string]string, more map[string]string) map[string]string {
		all := maps.Clone(base)
		maps.Copy(all, more)
		return all
	}
	without := func(base map[string]string, path string) map[string]string {
		all := maps.Clone(base)
		delete(all, path)
		return all
	}
	onHost := map[string]string{"/usr": "read", "/etc/alternatives": "read"}
	for name, tt := range map[string]struct {
		values             string
		plugin, supervisor map[string]string
	}{
		"defaults": {"",
			with(with(plugin, onHost), map[string]string{"/run/nvidia": "read HostToContainer"}),
			with(supervisor, map[string]string{"/": "read HostToContainer"})},
		"the host's driver": {"driver: {root: /}",
			with(plugin, onHost), with(supervisor, map[string]string{"/": "read HostToContainer"})},
		"a driver container": {"driver: {root: /run/nvidia/driver}",
			with(plugin, map[string]string{"/run/nvidia/driver": "read HostToContainer"}),
			with(supervisor, map[string]string{"/run/nvidia/driver": "written HostToContainer"})},
		"GKE's driver": {"driver: {root: /home/kubernetes/bin/nvidia}",
			with(plugin, map[string]string{"/home/kubernetes/bin/nvidia": "read HostToContainer"}),
			with(supervisor, map[string]string{"/home/kubernetes/bin/nvidia": "written HostToContainer"})},
		"no directory for hooks": {"{cdi: {hookDir: \"\"}, driver: {root: /}}",
			without(with(plugin, onHost), "/var/lib/cleave"), with(supervisor, map[string]string{"/": "read HostToContainer"})},
	} {
		t.Run(name, func(t *testing.T) {
			objects := mustRender(t, tt.values)
			if diff := cmp.Diff(tt.plugin, hostMounts(podOfSet(t, objects, "cleave-plugin"))); diff != "" {
				t.Errorf("the plugin's (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.supervisor, hostMounts(podOfSet(t, objects, "cleave-mps"))); diff != "" {
				t.Errorf("the supervisor's (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPrivileges_Containers(t *testing.T) {
	for values, privileged := range map[string]bool{"": true, matrix["capabilities"]: false} {
		objects := mustRender(t, values)
		for name, privileged := range map[string]bool{"cleave-plugin": privileged, "cleave-mps": true} {
			pod := podOfSet(t, objects, name)
			c := pod.Containers[0].SecurityContext
			if c.ReadOnlyRootFilesystem == nil || !*c.ReadOnlyRootFilesystem {
				t.Errorf("%s can write its root file system", name)
			}
			if got := c.Privileged != nil && *c.Privileged; got != privileged {
				t.Errorf("%s with %q: privileged %t", name, values, got)
			}
			if pod.HostNetwork || pod.HostIPC {
				t.Errorf("%s has the host's network or IPC namespace", name)
			}
			if privileged {
				continue
			}
			want := &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"SYS_ADMIN", "SYS_CHROOT"}}
			if diff := cmp.Diff(want, c.Capabilities); diff != "" {
				t.Errorf("capabilities of %s (-want +got):\n%s", name, diff)
			}
			if pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("%s has the seccomp profile %v", name, pod.SecurityContext.SeccompProfile)
			}
		}
		supervisor := podOfSet(t, objects, "cleave-mps")
		if supervisor.AutomountServiceAccountToken == nil || *supervisor.AutomountServiceAccountToken {
			t.Error("the supervisor has a token")
		}
		for _, o := range objects {
			if strings.HasSuffix(o.GetKind(), "RoleBinding") && strings.Contains(fmt.Sprint(o.Object["subjects"]), "cleave-mps") {
				t.Errorf("the supervisor has a role by %s", o.GetName())
			}
		}
	}
}

// rules are those of all roles of the chart.
func rules(t *testing.T) []rbacv1.PolicyRule {
	t.Helper()
	var all []rbacv1.PolicyRule
	for _, o := range mustRender(t, "") {
		if o.GetKind() != "Role" && o.GetKind() != "ClusterRole" {
			continue
		}
		role := &rbacv1.ClusterRole{}
		must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, role))
		all = append(all, role.Rules...)
	}
	return all
}

func TestPrivileges_Documented(t *testing.T) {
	data := readFile(t, securityDoc)
	rows := map[string]string{} // first cell -> row
	for line := range strings.Lines(string(data)) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for name := range strings.SplitSeq(cells[1], ",") {
				rows[strings.TrimSpace(name)] = line
			}
		}
	}
	objects := mustRender(t, "")
	for column, name := range map[int]string{2: "cleave-plugin", 3: "cleave-mps"} {
		for path, how := range hostMounts(podOfSet(t, objects, name)) {
			cells := strings.Split(rows["`"+path+"`"], "|")
			if len(cells) < 5 || strings.TrimSpace(cells[column]) != strings.Fields(how)[0] || strings.TrimSpace(cells[4]) == "" {
				t.Errorf("%s of %s is %s, and the documentation says %q", path, name, how, rows["`"+path+"`"])
			}
		}
	}
	for _, capability := range podOfSet(t, mustRender(t, matrix["capabilities"]), "cleave-plugin").Containers[0].SecurityContext.Capabilities.Add {
		if rows["`"+string(capability)+"`"] == "" {
			t.Errorf("capability %s is not in the documentation", capability)
		}
	}
	for _, rule := range rules(t) {
		for _, resource := range rule.Resources {
			cells := strings.Split(rows["`"+resource+"`"], "|")
			if len(cells) < 4 || strings.TrimSpace(cells[2]) != strings.Join(rule.Verbs, ", ") {
				t.Errorf("%s may be %v, and the documentation says %q", resource, rule.Verbs, rows["`"+resource+"`"])
			}
		}
	}
}

func TestPrivileges_Roles(t *testing.T) {
	for _, rule := range rules(t) {
		for _, list := range [][]string{rule.APIGroups, rule.Resources, rule.Verbs} {
			if slices.Contains(list, "*") {
				t.Errorf("a wildcard in %+v", rule)
			}
		}
		for _, resource := range rule.Resources {
			if slices.Contains([]string{"secrets", "configmaps", "pods", "serviceaccounts"}, resource) || slices.Contains(rule.APIGroups, "rbac.authorization.k8s.io") {
				t.Errorf("the plugin may %v %s", rule.Verbs, resource)
			}
		}
	}
}

// Whoever reaches the metrics learns names of tenants: the peers are as the values say, and nothing else is let in.
func TestRender_MetricsPeers(t *testing.T) {
	for values, want := range map[string]string{
		"": "<nil>",
		"metrics: {allowFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]}": "[map[from:[map[namespaceSelector:map[matchLabels:map[kubernetes.io/metadata.name:monitoring]]]] ports:[map[port:metrics protocol:TCP]]]]",
	} {
		spec, _, err := unstructured.NestedMap(find(mustRender(t, values), "NetworkPolicy", "cleave-plugin").Object, "spec")
		if got := fmt.Sprint(spec["ingress"]); got != want || err != nil {
			t.Errorf("%q: got %s, %v, want %s", values, got, err, want)
		}
	}
}
