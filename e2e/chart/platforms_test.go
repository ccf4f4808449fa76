// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const (
	platformsDir = source + "/deployments/examples/platforms"
	platformsDoc = source + "/docs/platforms.md"
)

// platforms are the values by platform: the names of the files without their ending.
func platforms() map[string]string {
	files, err := filepath.Glob(platformsDir + "/*.yaml")
	if err != nil || len(files) < 8 {
		panic("the values of platforms are gone")
	}
	all := map[string]string{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			panic(err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".yaml")] = string(data)
	}
	return all
}

// withPlatforms adds their values to the matrix, so that all that is checked of it is checked of them.
func withPlatforms(matrix map[string]string) map[string]string {
	for name, values := range platforms() {
		matrix["platform "+name] = values
	}
	return matrix
}

// TestPlatforms_Documented: each file is on the page, and what the page says of the driver is what the file says.
func TestPlatforms_Documented(t *testing.T) {
	page := string(readFile(t, platformsDoc))
	for name, values := range platforms() {
		if !strings.Contains(page, "`"+name+".yaml`") {
			t.Errorf("%s does not name %s.yaml", platformsDoc, name)
		}
		_, row, found := strings.Cut(page, "| `"+name+".yaml` | ")
		if !found {
			continue // not of a platform
		}
		cells := strings.Split(row, " | ")
		root := strings.NewReplacer("`", "", "searched for", "auto").Replace(cells[0])
		if !strings.Contains(values, "root: "+root+"}") && !strings.Contains(values, "root: "+root+",") {
			t.Errorf("%s has the root %s for %s.yaml", platformsDoc, root, name)
		}
	}
}

// TestPlatforms_OnePlaceForTheDriver: plugin and supervisor look for the driver at the same place, and mount it. The plugin reads the
// host's mount of proc, as the times of its files are of the mount.
func TestPlatforms_OnePlaceForTheDriver(t *testing.T) {
	for name, values := range platforms() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			objects := mustRender(t, values)
			plugin := podOfSet(t, objects, "cleave-plugin")
			root, procfs := "", ""
			for _, e := range plugin.Containers[0].Env {
				switch e.Name {
				case "DRIVER_ROOT":
					root = e.Value
				case "PROCFS":
					procfs = e.Value
				}
			}
			if !slices.ContainsFunc(plugin.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
				return m.Name == "proc" && m.MountPath == procfs
			}) {
				t.Errorf("PROCFS=%q is no mount of the host's", procfs)
			}
			mounted := map[string]bool{}
			for _, v := range plugin.Volumes {
				mounted[v.HostPath.Path] = true
			}
			if root != "auto" && root != "/" && !mounted[root] || (root == "auto" || root == "/") && !mounted["/usr"] {
				t.Errorf("root %q, mounted are %v", root, mounted)
			}
			if find(objects, "DaemonSet", "cleave-mps") == nil {
				return
			}
			args := strings.Join(podOfSet(t, objects, "cleave-mps").Containers[0].Args, " ")
			if !strings.Contains(args, "--driver-root="+root+" ") {
				t.Errorf("root %q, the supervisor has %s", root, args)
			}
		})
	}
}

// TestPlatforms_SecondRelease: it shares no object with the first, in the cluster or in their namespace.
func TestPlatforms_SecondRelease(t *testing.T) {
	for _, both := range []string{"", "nvidiaCompatible: true\n"} {
		first := map[string]bool{}
		for _, o := range kindsAndNames(mustRender(t, both)) {
			first[o] = true
		}
		text, err := helm(t, platforms()["second-release"]+both, "template", "cleave-cos", chartDir, "--namespace", namespace)
		must(t, err)
		second, err := decode(text)
		must(t, err)
		if find(second, "DaemonSet", "cleave-cos-plugin") == nil {
			t.Fatalf("there is no plugin: %v", kindsAndNames(second))
		}
		for _, o := range kindsAndNames(second) {
			if first[o] {
				t.Errorf("both have %s, with %q", o, both)
			}
		}
	}
}

// TestPlatforms_Flux: the HelmRelease names files that there are, the chart's own values first, which it would otherwise do without, and
// the chart takes its values.
func TestPlatforms_Flux(t *testing.T) {
	objects, err := decode(string(readFile(t, platformsDir+"/flux/release.yaml")))
	must(t, err)
	if find(objects, "GitRepository", "cleave") == nil || find(objects, "Namespace", namespace) == nil {
		t.Errorf("got %v", kindsAndNames(objects))
	}
	helmRelease := find(objects, "HelmRelease", "cleave").Object
	path, _, err := unstructured.NestedString(helmRelease, "spec", "chart", "spec", "chart")
	must(t, err)
	files, _, err := unstructured.NestedStringSlice(helmRelease, "spec", "chart", "spec", "valuesFiles")
	must(t, err)
	inline, _, err := unstructured.NestedMap(helmRelease, "spec", "values")
	must(t, err)
	chart := filepath.Join(source, path)
	args := []string{"template", "cleave", chart, "--namespace", namespace}
	for _, file := range files {
		args = append(args, "--values", filepath.Join(source, file))
	}
	if chart != filepath.Clean(chartDir) || len(files) != 2 || args[6] != filepath.Join(chart, "values.yaml") {
		t.Fatalf("got %q", args)
	}
	values, err := yaml.Marshal(inline)
	must(t, err)
	text, err := helm(t, string(values), args...)
	must(t, err)
	rendered, err := decode(text)
	must(t, err)
	if image := podOfSet(t, rendered, "cleave-plugin").Containers[0].Image; !strings.HasPrefix(image, "registry.example.com/cleave:") {
		t.Errorf("the plugin has the image %s", image)
	}
}

// TestPlatforms_Settings: no pod of GKE has a class that the quota does not admit, and the registry of air-gap.yaml is that of all images.
func TestPlatforms_Settings(t *testing.T) {
	gke := mustRender(t, platforms()["gke"])
	quota := typed[corev1.ResourceQuota](t, gke, "ResourceQuota", "cleave-critical-pods")
	if class := podOfSet(t, gke, "cleave-plugin").PriorityClassName; !strings.Contains(strings.Join(quota.Spec.ScopeSelector.MatchExpressions[0].Values, " "), class) {
		t.Errorf("class %s is not of the quota", class)
	}
	if find(mustRender(t, platforms()["openshift"]), "RoleBinding", "cleave-privileged") == nil {
		t.Error("OpenShift has no binding")
	}
	for _, name := range []string{"talos", "bottlerocket"} {
		if find(mustRender(t, platforms()[name]), "DaemonSet", "cleave-mps") != nil {
			t.Errorf("%s has an MPS supervisor", name)
		}
	}
	objects := mustRender(t, platforms()["air-gap"]+"scheduler: {enabled: true}\ndashboard: {enabled: true}\nrepack: {enabled: true}\nwebhook: {enabled: true, tls: {from: secret}}\n")
	for component, w := range workloads(t, objects) {
		spec := w.template.Spec
		if !strings.HasPrefix(spec.Containers[0].Image, "registry.example.com/cleave") || len(spec.ImagePullSecrets) != 1 {
			t.Errorf("%s has the image %s and the secrets %v", component, spec.Containers[0].Image, spec.ImagePullSecrets)
		}
	}
}
