// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"
)

const (
	valuesDoc   = "../../docs/values.md"
	securityDoc = "../../docs/security.md"

	// chartReadme is what "helm show readme" and registries show.
	chartReadme = chartDir + "/README.md"

	valuesHead = "# Chart values\n\nFor admins. Written by `make manifests` from `deployments/helm/cleave/values.yaml`. Misspelled values are rejected.\n\n"
)

// readFile is the content of a file.
func readFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return data
}

// value is one of values.yaml.
type value struct {
	path, fallback, text string
}

// documentedValues reads values.yaml by its form: a comment, then the value that it is of. What is over several lines is
// shown as such.
func documentedValues(t *testing.T) []value {
	t.Helper()
	data := readFile(t, chartDir+"/values.yaml")
	var values []value
	var comment, path []string
	for line := range strings.Lines(string(data)) {
		text := strings.TrimSpace(line)
		depth := (len(line) - len(strings.TrimLeft(line, " "))) / 2
		key, fallback, isKey := strings.Cut(text, ":")
		switch {
		case text == "":
			comment = nil
		case strings.HasPrefix(text, "#"):
			comment = append(comment, strings.TrimSpace(strings.TrimPrefix(text, "#")))
		case strings.HasPrefix(text, "- "): // of the list above
			values[len(values)-1].fallback = "see values.yaml"
		case isKey && depth <= len(path):
			path = append(path[:depth], key)
			values = append(values, value{strings.Join(path, "."), strings.TrimSpace(fallback), strings.Join(comment, " ")})
			comment = nil
		default:
			t.Fatalf("cannot read %q", line)
		}
	}
	return slices.DeleteFunc(values, func(v value) bool { return v.fallback == "" }) // they hold others
}

func TestValues_DocumentedInSchema(t *testing.T) {
	data := readFile(t, chartDir+"/values.schema.json")
	type schema struct {
		Properties           map[string]schema `json:"properties"`
		AdditionalProperties any               `json:"additionalProperties"`
	}
	var root schema
	must(t, yaml.Unmarshal(data, &root))
	for _, v := range documentedValues(t) {
		if v.text == "" {
			t.Errorf("%s has no comment", v.path)
		}
		at := root
		for _, key := range strings.Split(v.path, ".") {
			next, ok := at.Properties[key]
			if !ok {
				t.Errorf("%s is not in the schema", v.path)
				break
			}
			if len(at.Properties) > 0 && at.AdditionalProperties != false {
				t.Errorf("the schema takes what it does not know alongside %s", v.path)
			}
			at = next
		}
	}
}

// chartHead is the README of the chart up to its values. It is read where the repository is not: its links are absolute.
const chartHead = `# Cleave

A Kubernetes DRA driver for NVIDIA GPUs: whole GPUs, MIG partitions on demand, time-sliced and MPS shares.

` + "```" + `
helm install cleave deployments/helm/cleave --namespace cleave-system --create-namespace --set image.repository=REGISTRY/cleave
helm test cleave --namespace cleave-system
` + "```" + `

- [Install](https://github.com/cleave-dra/cleave/blob/main/docs/install.md), with requirements and where the images come from
- [Platforms](https://github.com/cleave-dra/cleave/blob/main/docs/platforms.md): values for GKE, EKS, AKS, OpenShift, Talos and others
- [Upgrade](https://github.com/cleave-dra/cleave/blob/main/docs/upgrade.md),
  [security](https://github.com/cleave-dra/cleave/blob/main/docs/security.md),
  [troubleshooting](https://github.com/cleave-dra/cleave/blob/main/docs/troubleshooting.md)

## Values

Written by ` + "`make manifests` from `values.yaml`" + `. Misspelled values are rejected.

`

func TestValues_ListedInDocs(t *testing.T) {
	var table strings.Builder
	table.WriteString("| value | default | |\n| --- | --- | --- |\n")
	for _, v := range documentedValues(t) {
		fallback := "`" + v.fallback + "`"
		if v.fallback == "see values.yaml" || v.fallback == `""` {
			fallback = strings.Trim(v.fallback, `"`)
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", v.path, fallback, strings.ReplaceAll(v.text, "|", `\|`))
	}
	for file, head := range map[string]string{valuesDoc: valuesHead, chartReadme: chartHead} {
		want := head + table.String()
		if os.Getenv("UPDATE_DOCS") == "1" {
			must(t, os.WriteFile(file, []byte(want), 0o644))
			continue
		}
		if diff := cmp.Diff(want, string(readFile(t, file))); diff != "" {
			t.Errorf("%s is out of date: run \"make manifests\" (-chart +file):\n%s", file, diff)
		}
	}
}

func TestManifests_UpToDate(t *testing.T) {
	for file, args := range map[string][]string{
		"install.yaml": {"--no-hooks"}, "deviceclasses.yaml": {"--show-only", "templates/deviceclasses.yaml"},
	} {
		text, err := helm(t, "", append([]string{"template", "cleave", chartDir, "--namespace", namespace}, args...)...)
		must(t, err)
		want, err := decode(text)
		must(t, err)
		for _, o := range want { // Helm does not manage what kubectl applies
			l := o.GetLabels()
			delete(l, "app.kubernetes.io/managed-by")
			delete(l, "helm.sh/chart")
			o.SetLabels(l)
		}
		data := readFile(t, filepath.Join(manifestDir, file))
		got, err := decode(string(data))
		must(t, err)
		if len(got) > 0 && got[0].GetKind() == "Namespace" {
			got = got[1:]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s is out of date: run \"make manifests\" (-chart +file):\n%s", file, diff)
		}
	}
}

// TestDocs_CompatibleWithoutHelm: what the page of the NVIDIA-compatible mode has people apply in place of a release is of one driver name.
func TestDocs_CompatibleWithoutHelm(t *testing.T) {
	commands := docCommands(t)
	at := slices.IndexFunc(commands, func(c docCommand) bool {
		return strings.HasPrefix(c.where, "nvidia-compatible.md:") && strings.HasPrefix(c.text, "helm template ")
	})
	if at < 0 {
		t.Fatal("the page renders no chart")
	}
	var args []string
	for _, word := range commands[at].stages[0][1:] {
		args = append(args, strings.Replace(word, "deployments/", source+"/deployments/", 1))
	}
	text, err := helm(t, "", args...)
	must(t, err)
	objects, err := decode(text)
	must(t, err)
	if env := podOfSet(t, objects, "cleave-plugin").Containers[0].Env; !slices.Contains(env, corev1.EnvVar{Name: "DRIVER_NAME", Value: "gpu.nvidia.com"}) {
		t.Errorf("the plugin has %v", env)
	}
	whole := 0
	for _, o := range objects {
		if o.GetKind() != "DeviceClass" {
			continue
		}
		class := typed[resourceapi.DeviceClass](t, objects, o.GetKind(), o.GetName()).Spec
		if class.ExtendedResourceName != nil && *class.ExtendedResourceName == "nvidia.com/gpu" {
			whole++
		}
		if !strings.HasPrefix(class.Selectors[0].CEL.Expression, `device.driver == "gpu.nvidia.com"`) {
			t.Errorf("class %s selects %s", o.GetName(), class.Selectors[0].CEL.Expression)
		}
	}
	if whole != 1 {
		t.Errorf("%d classes have nvidia.com/gpu", whole)
	}
}
