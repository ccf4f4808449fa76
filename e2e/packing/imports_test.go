// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/migrate"

	gocmp "github.com/google/go-cmp/cmp"
)

// step is a pod that asks for an extended resource as it did with the device plugin, so often, and what each gets: GPU and
// device, or nothing where it waits.
type step struct {
	resource string
	count    int64
	pods     int
	want     string
}

// one pod for one of a resource.
func one(name, want string) step { return step{name, 1, 1, want} }

// several pods that get the same.
func several(pods int, name, want string) step { return step{name, 1, pods, want} }

// imported is a node as an imported file has it, with the DeviceClasses that come with the file.
func imported(t *testing.T, format policy.Format, text, name string, inventory *policy.Node, partitions func(*gpu.GPU) []gpu.Place) *cluster {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	set, err := policy.Load(file, format)
	must(t, err)
	_, p, err := set.Select(name)
	must(t, err)
	must(t, policy.Check(p, inventory.Node))
	read := migrate.DevicePlugin
	if format.Name == migrate.FormatMIGParted().Name {
		read = migrate.MIGParted
	}
	i, err := read([]byte(text), migrate.Options{})
	must(t, err)
	inventory = policy.Apply(p, inventory.Node, policy.Capabilities{Partitions: partitions})
	return clusterOf(t, inventory, Cleave(inventory), i.Classes())
}

// existing are partitions that were created outside Cleave on some of a node's GPUs: their profiles, from the top of the board down.
func existing(byGPU map[int][]string) func(*gpu.GPU) []gpu.Place {
	return func(g *gpu.GPU) (places []gpu.Place) {
		var taken []gpu.Shape
		for _, name := range byGPU[g.Index] {
			i := slices.IndexFunc(g.MIG.Profiles, func(p gpu.Profile) bool { return p.Name == name })
			p := &g.MIG.Profiles[i]
			for _, at := range slices.Backward(p.Placements) {
				if s := (gpu.Shape{GPU: g, Profile: p, Placement: at}); s.FitsAlongside(taken) {
					taken = append(taken, s)
					places = append(places, s.Place())
					break
				}
			}
		}
		return places
	}
}

const (
	whole, shared, small, middle, large = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb", "nvidia.com/mig-3g.40gb"
)

// imports are configurations of other tools, and what pods get after they are imported. A text with @ names a file of
// testdata.
var imports = map[string]struct {
	format     policy.Format
	text       string
	policy     string
	model      string
	partitions map[int][]string
	steps      []step
}{
	"whole GPUs": {migrate.FormatDevicePlugin(), "@device-plugin-plain.yaml", "", "l40s", nil, []step{
		one(whole, "3 gpu"), {whole, 2, 1, "2 gpu, 1 gpu"}, one(whole, "0 gpu"), one(whole, ""),
	}},
	"time slices, renamed": {migrate.FormatDevicePlugin(), "@device-plugin-shared.yaml", "", "t4", nil, []step{
		several(10, shared, "0 timeslice"), one(shared, ""), one(whole, "no class"),
	}},
	"time slices, one request for two": {migrate.FormatDevicePlugin(), "@device-plugin-shared.yaml", "", "l40s", nil, []step{
		{shared, 2, 1, "1 timeslice, 2 timeslice"}, several(9, shared, "1 timeslice"),
	}},
	"a thousand time slices": {migrate.FormatDevicePlugin(), "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 1000}]}}", "", "t4", nil, []step{
		several(1000, whole, "0 timeslice"), one(whole, ""),
	}},
	"MPS": {migrate.FormatDevicePlugin(), "@device-plugin-mps.yaml", "", "hgx-h100", nil, []step{
		several(10, whole, "3 mps"), several(10, whole, "4 mps"), several(60, whole, "any mps"), one(whole, ""),
	}},
	"the most of MPS on a small GPU": {migrate.FormatDevicePlugin(), "version: v1\nsharing: {mps: {resources: [{name: gpu, replicas: 48}]}}", "", "t4", nil, []step{
		several(48, whole, "0 mps"), one(whole, ""),
	}},
	"one GPU for a few, two for many": {migrate.FormatDevicePlugin(), "@device-plugin-light-and-heavy.yaml", "", "hgx-h100", nil, []step{
		several(2, "nvidia.com/gpu-light", "0 timeslice"), one("nvidia.com/gpu-light", ""),
		several(8, "nvidia.com/gpu-heavy", "1 timeslice"), several(8, "nvidia.com/gpu-heavy", "7 timeslice"), one("nvidia.com/gpu-heavy", ""),
		{whole, 5, 1, "6 gpu, 5 gpu, 4 gpu, 3 gpu, 2 gpu"}, one(whole, ""),
	}},
	"strategy single without partitions": {migrate.FormatDevicePlugin(), "version: v1\nflags: {migStrategy: single}", "", "l40s", nil, []step{
		{whole, 4, 1, "3 gpu, 2 gpu, 1 gpu, 0 gpu"}, one(whole, ""),
	}},
	"strategy single with partitions": {migrate.FormatDevicePlugin(), "version: v1\nflags: {migStrategy: single}", "", "dgx-a100", map[int][]string{0: {"3g.40gb", "3g.40gb"}, 1: {"3g.40gb"}}, []step{
		several(2, whole, "0 3g.40gb"), one(whole, "1 3g.40gb"), one(whole, ""), one(large, "no class"),
	}},
	"strategy mixed": {migrate.FormatDevicePlugin(), "version: v1\nflags: {migStrategy: mixed}", "", "dgx-a100", map[int][]string{0: {"3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"}}, []step{
		several(2, small, "0 1g.10gb"), one(small, ""), one(middle, "0 2g.20gb"), one(middle, ""), one(large, "0 3g.40gb"), one(large, ""), one(whole, ""),
	}},
	"strategy mixed, whole GPUs shared": {migrate.FormatDevicePlugin(), "version: v1\nflags: {migStrategy: mixed}\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 2}, {name: mig-1g.10gb, replicas: 2}]}}",
		"", "hgx-h100", map[int][]string{5: {"1g.10gb"}}, []step{
			several(2, shared, "3 timeslice"), several(2, small+".shared", "5 1g.10gb mig-timeslice"), one(small+".shared", ""), one(small, "no class"), one(whole, "no class"),
		}},
	"a configuration of many roles": {migrate.FormatMIGParted(), "@mig-parted-custom.yaml", "custom-config", "dgx-a100-roles", nil, []step{
		{whole, 4, 1, "3 gpu, 2 gpu, 1 gpu, 0 gpu"}, one(whole, ""),
		several(7, small, "4 1g.10gb"), several(2, small, "7 1g.10gb"), one(small, ""),
		several(3, middle, "5 2g.20gb"), one(middle, "7 2g.20gb"), one(middle, ""),
		several(2, large, "6 3g.40gb"), one(large, "7 3g.40gb"), one(large, ""),
	}},
	"a balanced one": {migrate.FormatMIGParted(), "@mig-parted-default.yaml", "all-balanced", "hgx-h100", nil, []step{
		several(2, small, "0 1g.10gb"), several(2, small, "1 1g.10gb"), one(middle, "0 2g.20gb"), one(large, "0 3g.40gb"), several(7, large, "any 3g.40gb"), one(large, ""), one(whole, ""),
	}},
	"a balanced one on another board": {migrate.FormatMIGParted(), "@mig-parted-default.yaml", "all-balanced", "a30", nil, []step{
		several(2, "nvidia.com/mig-1g.6gb", "0 1g.6gb"), one("nvidia.com/mig-2g.12gb", "0 2g.12gb"), one("nvidia.com/mig-2g.12gb", "1 2g.12gb"), one("nvidia.com/mig-2g.12gb", ""),
	}},
	"a balanced one on a board of no entry": {migrate.FormatMIGParted(), "@mig-parted-default.yaml", "all-balanced", "l40s", nil, []step{one(whole, "3 gpu")}},
	"the smallest":                          {migrate.FormatMIGParted(), "@mig-parted-default.yaml", "all-1g.10gb", "hgx-h100", nil, []step{several(7, small, "0 1g.10gb"), several(49, small, "any 1g.10gb"), one(small, ""), one(whole, "")}},
	"disabled":                              {migrate.FormatMIGParted(), "@mig-parted-default.yaml", "all-disabled", "hgx-h100", nil, []step{one(small, ""), {whole, 8, 1, "7 gpu, 6 gpu, 5 gpu, 4 gpu, 3 gpu, 2 gpu, 1 gpu, 0 gpu"}}},
	"enabled":                               {migrate.FormatMIGParted(), "@mig-parted-default.yaml", "all-enabled", "hgx-h100", map[int][]string{2: {"2g.20gb"}}, []step{one(whole, ""), one(small, ""), one(middle, "2 2g.20gb"), one(middle, "")}},
}

func TestImport_ExtendedResources(t *testing.T) {
	for name, tt := range imports {
		t.Run(name, func(t *testing.T) {
			inventory := model(t, strings.TrimSuffix(tt.model, "-roles"))
			if strings.HasSuffix(tt.model, "-roles") {
				for i := range 4 { // as mig-parted had set it
					inventory.GPUs[i].MIG.Enabled = false
				}
			}
			text := tt.text
			if file, ok := strings.CutPrefix(text, "@"); ok {
				data := readFile(t, filepath.Join("../../pkg/tools/migrate/testdata", file))
				text = string(data)
			}
			c := imported(t, tt.format, text, tt.policy, inventory, existing(tt.partitions))
			for n, s := range tt.steps {
				for range s.pods {
					if got := c.ask(s); got != s.want && (!strings.HasPrefix(s.want, "any ") || got == "" || !strings.HasSuffix(got, s.want[3:])) {
						t.Fatalf("step %d: %d of %s: got %q, want %q", n, s.count, s.resource, got, s.want)
					}
				}
			}
		})
	}
}

// ask allocates for a pod that asks for an extended resource.
func (c *cluster) ask(s step) string {
	c.t.Helper()
	c.claims++
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceName(s.resource): *resource.NewQuantity(s.count, resource.DecimalSI)},
		}}}},
	}
	spec := extended(pod, c.class)
	if len(spec.Devices.Requests) == 0 {
		return "no class"
	}
	devices, _, err := c.try(newClaimOf("claim-"+resource.NewQuantity(int64(c.claims), resource.DecimalSI).String(), spec))
	if err != nil {
		return ""
	}
	var got []string
	for _, d := range devices {
		got = append(got, describe(c, d))
	}
	return strings.Join(got, ", ")
}

// TestImport_Classes looks at a node that offers every tier.
func TestImport_Classes(t *testing.T) {
	for text, want := range map[string]map[string][]string{
		"version: v1": {"gpu.device-plugin.cleave.dev": {"gpu"}},
		"version: v1\nflags: {migStrategy: single}":                                                                  {"gpu.device-plugin.cleave.dev": {"gpu", "mig"}},
		"version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}":                               {"gpu.device-plugin.cleave.dev": {"timeslice"}},
		"version: v1\nsharing: {mps: {renameByDefault: true, resources: [{name: gpu, replicas: 4}]}}":                {"gpu.shared.device-plugin.cleave.dev": {"mps"}},
		"version: v1\nresources: {gpus: [{pattern: 'NVIDIA H*80GB', name: h100}, {pattern: A100, name: a100}]}":      {"gpu.device-plugin.cleave.dev": {"gpu"}, "h100.device-plugin.cleave.dev": {"gpu"}},
		"version: v1\nflags: {migStrategy: single}\nresources: {mig: [{pattern: '1g*10gb', name: small}]}":           {"gpu.device-plugin.cleave.dev": {"gpu", "mig"}, "small.device-plugin.cleave.dev": {"mig"}},
		"version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, rename: x, devices: [9], replicas: 4}]}}":      {"gpu.device-plugin.cleave.dev": {"gpu"}},
		"version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, rename: x, devices: [0, '7'], replicas: 4}]}}": {"gpu.device-plugin.cleave.dev": {"gpu"}, "x.device-plugin.cleave.dev": {"timeslice"}},
	} {
		i, err := migrate.DevicePlugin([]byte(text), migrate.Options{})
		must(t, err)
		got := map[string][]string{}
		for _, s := range Cleave(offeredNode(t, "hgx-h100")) {
			for n := range s.Spec.Devices {
				d := &s.Spec.Devices[n]
				for _, class := range matching(t, i.Classes(), s.Spec.Driver, d) {
					if kind := *d.Attributes["type"].StringValue; !slices.Contains(got[class], kind) {
						got[class] = append(got[class], kind)
						slices.Sort(got[class])
					}
				}
			}
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%s: types by class (-want +got):\n%s", text, diff)
		}
	}
}
