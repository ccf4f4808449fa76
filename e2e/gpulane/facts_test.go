// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"reflect"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// said is what nvml-probe prints of a board, shortened.
const said = `{"gpu":-1,"call":"nvmlInit_v2","args":"","code":0,"meaning":"well"}
{"gpu":-1,"call":"nvmlDeviceGetCount_v2","args":"","code":0,"meaning":"well","value":1}
{"gpu":0,"call":"nvmlDeviceGetUUID","args":"","code":0,"meaning":"well","value":"GPU-1"}
{"gpu":0,"call":"nvmlDeviceGetPciInfo_v3","args":"","code":0,"meaning":"well","value":"00000000:1B:00.0"}
{"gpu":0,"call":"nvmlDeviceGetName","args":"","code":0,"meaning":"well","value":"NVIDIA H200"}
{"gpu":0,"call":"nvmlDeviceGetCudaComputeCapability","args":"","code":0,"meaning":"well","value":"9.0"}
{"gpu":0,"call":"nvmlDeviceGetMemoryInfo","args":"","code":0,"meaning":"well","value":{"total":1000,"free":800,"used":200}}
{"gpu":0,"call":"nvmlDeviceGetMemoryInfo_v2","args":"","code":0,"meaning":"well","value":{"total":1000,"reserved":100,"free":800,"used":100}}
{"gpu":0,"call":"nvmlDeviceGetComputeMode","args":"","code":0,"meaning":"well","value":0}
{"gpu":0,"call":"nvmlDeviceGetMigMode","args":"","code":0,"meaning":"well","value":{"current":1,"pending":1}}
{"gpu":0,"call":"nvmlDeviceGetApplicationsClock","args":"graphics","code":3,"meaning":"Not Supported"}
{"gpu":0,"call":"nvmlDeviceGetGpuInstancePossiblePlacements_v2","args":"19","code":0,"meaning":"well","value":[{"start":0,"size":1},{"start":6,"size":1}]}
{"gpu":0,"call":"nvmlDeviceGetGpuInstancePossiblePlacements_v2","args":"20","code":3,"meaning":"Not Supported"}
{"gpu":0,"call":"nvmlDeviceGetComputeRunningProcesses_v3","args":"","code":0,"meaning":"well","value":[{"pid":7,"memory":18446744073709551615}]}
`

func mustParse(t *testing.T, text string) Facts {
	t.Helper()
	facts, err := parseFacts([]byte(text))
	must(t, err)
	return facts
}

func TestBoards(t *testing.T) {
	boards, err := mustParse(t, said).boards()
	must(t, err)
	want := []board{{
		uuid: "GPU-1", name: "NVIDIA H200", pci: gpu.PCIAddress{Bus: 0x1b}, total: 1000, free: 800, reserved: 100, mig: true, capability: "9.0",
		processes: []gpuProcess{{PID: 7, Memory: 1<<64 - 1}}, // a driver that does not know says so
		profiles:  map[int][]gpu.Placement{19: {{Start: 0, Size: 1}, {Start: 6, Size: 1}}},
	}}
	if !reflect.DeepEqual(boards, want) {
		t.Errorf("boards are\n%+v, not\n%+v", boards, want)
	}
}

func TestBoards_OldDriver(t *testing.T) {
	text := strings.ReplaceAll(said, `"nvmlDeviceGetMemoryInfo_v2","args":"","code":0`, `"nvmlDeviceGetMemoryInfo_v2","args":"","code":13`)
	boards, err := mustParse(t, text).boards()
	must(t, err)
	if b := boards[0]; b.total != 1000 || b.reserved != -1 || b.usable() != 1000 {
		t.Errorf("without nvmlDeviceGetMemoryInfo_v2: total %d, reserved %d, usable %d", b.total, b.reserved, b.usable())
	}
}

func TestBoards_Unreadable(t *testing.T) {
	lines := strings.SplitAfter(said, "\n")
	for _, cut := range []int{0, 1, 2, 3} { // as if the library had crashed there
		if _, err := mustParse(t, strings.Join(lines[:cut], "")).boards(); err == nil {
			t.Errorf("%d lines are taken for boards", cut)
		}
	}
	if _, err := parseFacts([]byte("Segmentation fault\n")); err == nil {
		t.Error("nonsense is taken for answers")
	}
}

func TestChanges(t *testing.T) {
	before := mustParse(t, said)
	for _, c := range []struct{ name, old, changed, want string }{
		{"nothing", "", "", ""},
		{"MIG mode", `{"current":1,"pending":1}`, `{"current":1,"pending":0}`, "nvmlDeviceGetMigMode"},
		{"compute mode", `"nvmlDeviceGetComputeMode","args":"","code":0,"meaning":"well","value":0`,
			`"nvmlDeviceGetComputeMode","args":"","code":0,"meaning":"well","value":3`, "nvmlDeviceGetComputeMode() was well 0 and is well 3"},
		{"clocks", `"args":"graphics","code":3,"meaning":"Not Supported"`, `"args":"graphics","code":0,"meaning":"well","value":1500`,
			"nvmlDeviceGetApplicationsClock(graphics)"},
		{"a lost GPU", `"call":"nvmlDeviceGetUUID"`, `"call":"nvmlDeviceGetSomethingElse"`, "is not now"},
		{"memory in use", `"free":800`, `"free":700`, ""},
	} {
		after := mustParse(t, strings.ReplaceAll(said, c.old, c.changed))
		got := strings.Join(changes(before, after), "; ")
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
