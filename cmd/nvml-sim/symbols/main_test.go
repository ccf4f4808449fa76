// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSymbols(t *testing.T) {
	const header = `
#ifndef NVML_NO_UNVERSIONED_FUNC_DEFS
    #define nvmlInit                                    nvmlInit_v2
    #define nvmlBlacklistDeviceInfo_t                   nvmlExcludedDeviceInfo_t
#endif
#define nvmlMemory_v2 NVML_STRUCT_VERSION(Memory, 2)
    #define DECLDIR __declspec(dllexport)
nvmlReturn_t DECLDIR nvmlInit_v2(void);
const DECLDIR char* nvmlErrorString(nvmlReturn_t result);
DEPRECATED(13.0) nvmlReturn_t DECLDIR nvmlDeviceGetHandleBySerial(const char *serial,
    nvmlDevice_t *device);
nvmlReturn_t DECLDIR nvmlDeviceModifyDrainState (nvmlPciInfo_t *pciInfo, nvmlEnableState_t newState);
 * see nvmlShutdown(void)
`
	want := []string{"nvmlDeviceGetHandleBySerial", "nvmlDeviceModifyDrainState", "nvmlErrorString", "nvmlInit", "nvmlInit_v2"}
	if diff := cmp.Diff(want, Symbols(header)); diff != "" {
		t.Errorf("symbols (-want +got):\n%s", diff)
	}
}

// The committed file is that of the go-nvml which go.mod names.
func TestSymbols_UpToDate(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		t.Fatal(err)
	}
	output := filepath.Join(t.TempDir(), "symbols.c")
	if err := run(filepath.Join(strings.TrimSpace(string(dir)), "pkg/nvml/nvml.h"), output); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(output)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../libnvidia-ml/symbols.c")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("symbols.c is out of date, run \"go generate ./cmd/nvml-sim/symbols\" (-want +got):\n%s", diff)
	}
}
