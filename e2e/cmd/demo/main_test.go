// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/deployments/manifests"
	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
)

const source = "../../.."

// readme is what the README says of the demo.
func readme(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(source, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(data), "\n## Try it: `make demo`\n")
	section, _, ends := strings.Cut(section, "\n## ")
	if !found || !ends {
		t.Fatal("README.md has no section on the demo")
	}
	return section
}

// classes are the chart's, by the extended resource that they serve.
func classes(t *testing.T) map[string]string {
	t.Helper()
	data, err := manifests.Files.ReadFile("deviceclasses.yaml")
	if err != nil {
		t.Fatal(err)
	}
	serve := map[string]string{}
	for document := range strings.SplitSeq(string(data), "\n---\n") {
		class := &resourceapi.DeviceClass{}
		if err := yaml.Unmarshal([]byte(document), class); err != nil {
			t.Fatal(err)
		}
		if class.Spec.ExtendedResourceName != nil {
			serve[*class.Spec.ExtendedResourceName] = class.Name
		}
	}
	return serve
}

// classesOf are the classes of which the demo's pods ask for devices, by pod.
func classesOf(t *testing.T) map[string][]string {
	t.Helper()
	pods, serve := map[string][]string{}, classes(t)
	for _, name := range examples {
		objects, err := workload.Load(filepath.Join(source, "deployments", "examples", name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		asked := map[string][]string{} // by claim or template
		note := func(name string, spec *resourceapi.ResourceClaimSpec) {
			for _, r := range spec.Devices.Requests {
				asked[name] = append(asked[name], r.Exactly.DeviceClassName)
			}
		}
		for _, o := range objects {
			switch o := o.(type) {
			case *resourceapi.ResourceClaim:
				note(o.Name, &o.Spec)
			case *resourceapi.ResourceClaimTemplate:
				note(o.Name, &o.Spec.Spec)
			}
		}
		for _, o := range objects {
			p, ok := o.(*corev1.Pod)
			if !ok {
				continue
			}
			for _, ref := range p.Spec.ResourceClaims {
				for _, of := range []*string{ref.ResourceClaimName, ref.ResourceClaimTemplateName} {
					if of != nil {
						pods[p.Name] = append(pods[p.Name], asked[*of]...)
					}
				}
			}
			for resource := range p.Spec.Containers[0].Resources.Limits {
				if class := serve[string(resource)]; class != "" {
					pods[p.Name] = append(pods[p.Name], class)
				}
			}
		}
	}
	return pods
}

// tier of a class of the chart: all classes of profiles are of one.
func tier(class string) string {
	kind := strings.TrimSuffix(class, ".cleave.dev")
	if strings.HasPrefix(kind, "mig-") && kind != "mig-mps" && kind != "mig-timeslice" {
		return "mig"
	}
	return kind
}

// numbers are the words for them.
var numbers = []string{"no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"}

// The README says how many GPUs, pods and tiers the demo has.
func TestReadme_Numbers(t *testing.T) {
	inventory, err := models.Load(model)
	if err != nil {
		t.Fatal(err)
	}
	pods, tiers := classesOf(t), map[string]bool{}
	for pod, classes := range pods {
		if len(classes) == 0 {
			t.Errorf("pod %s asks for nothing", pod)
		}
		for _, class := range classes {
			tiers[tier(class)] = true
		}
	}
	_, board, _ := strings.Cut(model, "-")
	text := strings.Join(strings.Fields(readme(t)), " ")
	for _, want := range []string{
		fmt.Sprintf("a simulated node of %s %s GPUs", numbers[len(inventory.GPUs)], strings.ToUpper(board)),
		fmt.Sprintf("runs %s pods in %s tiers", numbers[len(pods)], numbers[len(tiers)]),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("README.md does not say %q of the demo", want)
		}
	}
	if !strings.Contains(closing(&cluster.Cluster{}, source, "/"), "make cluster-down") || !strings.Contains(text, "`make cluster-down` removes it") {
		t.Error("the README and the demo do not say alike how to remove it")
	}
}

// device is one that the node publishes.
type device struct {
	uuid, node, memory string
}

// published are the devices of the demo's node, with the device nodes of their GPUs, and the memory of a share in MiB.
func published(t *testing.T) map[string]device {
	t.Helper()
	inventory, err := models.Load(model)
	if err != nil {
		t.Fatal(err)
	}
	devices := map[string]device{}
	for _, s := range nodeslices.Objects(policy.Apply(&v1alpha1.NodePolicy{}, inventory, policy.Capabilities{}), v1alpha1.Group, "node").Items {
		for _, d := range s.Spec.Devices {
			of := device{}
			for i := range inventory.GPUs {
				if g := &inventory.GPUs[i]; d.Name == g.PCI.DeviceName() || strings.HasPrefix(d.Name, g.PCI.DeviceName()+"-") {
					of.uuid, of.node = g.UUID, fmt.Sprintf("/dev/nvidia%d", g.Minor)
				}
			}
			if amount, ok := d.Capacity["memory"]; ok && amount.RequestPolicy != nil && amount.RequestPolicy.Default != nil {
				of.memory = fmt.Sprint(amount.RequestPolicy.Default.Value() >> 20)
			}
			devices[d.Name] = of
		}
	}
	return devices
}

// The table of the README is one that the demo could print: its form, and what each pod gets and sees.
func TestReadme_Table(t *testing.T) {
	_, block, found := strings.Cut(readme(t), "It prints each pod's devices:\n\n```\n")
	block, _, ends := strings.Cut(block, "\n```\n")
	lines := slices.DeleteFunc(strings.Split(block, "\n"), func(line string) bool { return line == "..." })
	if !found || !ends || len(lines) < 3 {
		t.Fatalf("README.md has no table of the demo:\n%s", block)
	}
	var rows []row
	for _, line := range lines[1:] {
		cells := regexp.MustCompile(` {2,}`).Split(line, -1)
		if cells[0] == "" { // what the pod of the line before sees, too
			last := &rows[len(rows)-1]
			last.sees = append(last.sees, cells[1])
			continue
		}
		if len(cells) != 5 {
			t.Fatalf("the line %q has %d columns", line, len(cells))
		}
		rows = append(rows, row{cells[0], []workload.Allocated{{Class: cells[1], Device: cells[2], UUID: cells[3]}}, []string{cells[4]}})
	}
	var printed strings.Builder
	if err := writeTable(&printed, rows); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Join(lines, "\n")+"\n", printed.String()); diff != "" {
		t.Errorf("the table of README.md as the demo prints it (-README +demo):\n%s", diff)
	}
	pods, devices := classesOf(t), published(t)
	for _, r := range rows {
		got := r.devices[0]
		of, known := devices[got.Device]
		saw := workload.Seen{DeviceNodes: []string{of.node, "/dev/nvidiactl"}, Environment: []string{"CLEAVE_GPU_UUID=" + of.uuid}}
		if of.memory != "" {
			saw.Environment = append(saw.Environment, "CLEAVE_MEMORY_MIB="+of.memory, "CLEAVE_SHARES=1")
		}
		common := row{sees: []string{"/dev/nvidiactl", "CLEAVE_GPU_UUID"}} // all pods see these
		seen := []row{{sees: sight(saw, r.devices)}, common}
		takeCommon(seen)
		sees := seen[0].sees
		if !known || got.UUID != of.uuid || !slices.Contains(pods[r.pod], got.Class) {
			t.Errorf("%s cannot get %+v: the device has %+v, and the pod asks for %v", r.pod, got, of, pods[r.pod])
		}
		if diff := cmp.Diff(sees, r.sees); diff != "" {
			t.Errorf("what %s sees (-want +README):\n%s", r.pod, diff)
		}
	}
}

// The UUIDs of its devices have a column of their own, whatever their order.
func TestSight_UUIDs(t *testing.T) {
	devices := []workload.Allocated{{UUID: "MIG-1"}, {UUID: "MIG-2"}}
	for value, want := range map[string]string{"MIG-2,MIG-1": "A", "MIG-1": "A=MIG-1", "MIG-1,MIG-3": "A=MIG-1,MIG-3", "": "A="} {
		seen := workload.Seen{DeviceNodes: []string{"/dev/nvidia1"}, Environment: []string{"A=" + value}}
		if diff := cmp.Diff([]string{"/dev/nvidia1", want}, sight(seen, devices)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", value, diff)
		}
	}
}
