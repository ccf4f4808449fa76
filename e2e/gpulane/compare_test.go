// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// h200 is a board as NVML has it.
func h200() board {
	return board{
		uuid: "GPU-54846a6f-10f1-50d9-8a21-36d8ba4bee80", name: "NVIDIA H200", pci: gpu.PCIAddress{Bus: 0xdb},
		total: 143771 << 20, reserved: 605 << 20, free: 143000 << 20, capability: "9.0",
		profiles: map[int][]gpu.Placement{19: {{Start: 6, Size: 1}}},
	}
}

func TestParseSMI(t *testing.T) {
	// As nvidia-smi 580 prints it; boards without MIG have [N/A].
	gpus, err := parseSMI([]byte("GPU-54846a6f-10f1-50d9-8a21-36d8ba4bee80, 00000000:DB:00.0, 143771, 605, Default, Disabled\n" +
		"GPU-2, 00000000:DC:00.0, 15360, [N/A], Exclusive_Process, [N/A]\n"))
	must(t, err)
	if g := gpus[0]; g.pci.String() != "0000:db:00.0" || g.total != 143771 || g.reserved != 605 || g.computeMode != "Default" || g.mig != "Disabled" {
		t.Errorf("the first is %+v", g)
	}
	if gpus[1].reserved != -1 {
		t.Errorf("what nvidia-smi does not know is %d", gpus[1].reserved)
	}
	for _, text := range []string{"No devices were found\n", "GPU-1, elsewhere, 1, 1, Default, Disabled\n"} {
		if _, err := parseSMI([]byte(text)); err == nil {
			t.Errorf("%q is taken for GPUs", text)
		}
	}
}

func TestCompareSMI(t *testing.T) {
	right := smiGPU{uuid: h200().uuid, pci: h200().pci, total: 143771}
	for _, c := range []struct {
		name   string
		change func(*smiGPU)
		want   string
	}{
		{"the same", func(*smiGPU) {}, ""},
		{"rounded", func(g *smiGPU) { g.total++ }, ""},
		{"memory", func(g *smiGPU) { g.total += 100 }, "143871 MiB"},
		{"unknown memory", func(g *smiGPU) { g.total = -1 }, ""},
		{"address", func(g *smiGPU) { g.pci.Bus++ }, "0000:dc:00.0"},
		{"another", func(g *smiGPU) { g.uuid = "GPU-2" }, "has no GPU-54846a6f"},
	} {
		g := right
		c.change(&g)
		got := strings.Join(compareSMI([]smiGPU{g}, []board{h200()}), "; ")
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if len(compareSMI(nil, []board{h200()})) == 0 {
		t.Error("a missing GPU is not reported")
	}
}

// published is what `cleave slices -o json` prints of that board, shortened.
const published = `{"apiVersion":"v1","kind":"List","items":[{"spec":{"driver":"gpu.cleave.dev","sharedCounters":[]}},{"spec":{"devices":[
{"name":"gpu-0000-db-00-0","attributes":{"type":{"string":"gpu"},"uuid":{"string":"GPU-54846a6f-10f1-50d9-8a21-36d8ba4bee80"},
 "resource.kubernetes.io/pciBusID":{"string":"0000:db:00.0"},"cudaComputeCapability":{"version":"9.0.0"}},"capacity":{"memory":{"value":"143166Mi"}}},
{"name":"gpu-0000-db-00-0-mig-19-6","attributes":{"type":{"string":"mig"},"parentUUID":{"string":"GPU-54846a6f-10f1-50d9-8a21-36d8ba4bee80"},
 "profile":{"string":"1g.18gb"},"placementSize":{"int":1}},"capacity":{"memory":{"value":"16Gi"}}}]}}]}`

func TestCompareSlices(t *testing.T) {
	for _, c := range []struct{ name, old, changed, want string }{
		{"the same", "", "", ""},
		{"memory", "143166Mi", "143771Mi", "143771 MiB"},
		{"address", "0000:db:00.0", "0000:dc:00.0", "is published at 0000:dc:00.0"},
		{"name", `"name":"gpu-0000-db-00-0"`, `"name":"gpu-0000-dc-00-0"`, "named after another"},
		{"another GPU", "GPU-54846a6f", "GPU-00000000", "nothing is published"},
		{"no memory", "143166Mi", "much", "error"},
	} {
		devices, err := parseSlices([]byte(strings.ReplaceAll(published, c.old, c.changed)))
		must(t, err)
		list, err := compareSlices(devices, []board{h200()})
		got := strings.Join(list, "; ")
		if err != nil {
			got = "error: " + err.Error()
		}
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if _, err := parseSlices([]byte("no")); err == nil {
		t.Error("nonsense is taken for slices")
	}
}

func TestComparePlacements(t *testing.T) {
	devices, err := parseSlices([]byte(published))
	must(t, err)
	if n, list := comparePlacements(devices, []board{h200()}); n != 1 || len(list) > 0 {
		t.Errorf("%d published, %v", n, list)
	}
	more := h200()
	more.profiles = map[int][]gpu.Placement{19: {{Start: 0, Size: 1}}}
	_, list := comparePlacements(devices, []board{more})
	got := strings.Join(list, "; ")
	if want := "GPU 0: profile 19 at 0:1 is not published; GPU 0: profile 19 at 6:1 is published, and NVML does not know it"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if n, list := comparePlacements(devices[:1], []board{more}); n != 0 || len(list) > 0 {
		t.Errorf("a GPU without partitions: %d published, %v", n, list)
	}
}

func TestCompareShapes(t *testing.T) {
	devices, err := parseSlices([]byte(published))
	must(t, err)
	real := shapes(devices, h200().uuid)
	if len(real) != 2 || real["profile 19 at 6:1"] != "1g.18gb     memory=16Gi" {
		t.Fatalf("the shapes are %q", real)
	}
	model := map[string]string{"gpu": real["gpu"], "profile 19 at 6:1": "1g.16gb"}
	if list := compareShapes(real, model); len(list) != 1 || !strings.Contains(list[0], "1g.16gb") {
		t.Errorf("the differences are %q", list)
	}
}

func TestIsPart(t *testing.T) {
	for _, c := range []struct {
		have, all, percentage int
		want                  bool
	}{
		{33, 132, 25, true}, {34, 132, 25, true}, {32, 132, 25, true}, {66, 132, 50, true}, {132, 132, 25, false},
		{132, 132, 50, false}, {66, 132, 25, false}, {33, 132, 50, false}, {10, 40, 25, true}, {40, 40, 50, false},
	} {
		if got := isPart(c.have, c.all, c.percentage); got != c.want {
			t.Errorf("%d of %d are %d%%: %t", c.have, c.all, c.percentage, got)
		}
	}
}

func TestClientWith(t *testing.T) {
	c := client{name: "a", env: []string{"A=1", "B=0=2M", "C=3"}}
	got := c.with("b", "A=", "B=0=4M", "D=5")
	if got.name != "b" || strings.Join(got.env, " ") != "C=3 B=0=4M D=5" {
		t.Errorf("%+v", got)
	}
	if strings.Join(c.env, " ") != "A=1 B=0=2M C=3" {
		t.Errorf("the first has become %v", c.env)
	}
}
