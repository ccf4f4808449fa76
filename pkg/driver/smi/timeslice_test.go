// SPDX-License-Identifier: Apache-2.0

package smi_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
)

func sharedGPU() *gpu.GPU {
	return &gpu.GPU{PCI: gpu.PCIAddress{Bus: 0x1b}, UUID: "GPU-1"}
}

func TestSetTimeSlice_UnknownInterval(t *testing.T) {
	for _, interval := range []string{"", "long", "Forever", "3"} {
		r := &runner{}
		err := r.tool("/").SetTimeSlice(t.Context(), sharedGPU(), interval)
		if err == nil || !strings.Contains(err.Error(), `"`+interval+`"`) || !strings.Contains(err.Error(), "gpu-0000-1b-00-0") {
			t.Errorf("%q: got %v, want an error that names it and the GPU", interval, err)
		}
		if len(r.ran) > 0 {
			t.Errorf("%q: ran %v", interval, r.ran)
		}
	}
}

func TestSetTimeSlice_NvidiaSMIFails(t *testing.T) {
	failed := errors.New("exit status 6")
	r := &runner{output: "Unable to set\n\ttimeslice:\xff Not Supported\n\n", err: failed}
	err := r.tool("/").SetTimeSlice(t.Context(), sharedGPU(), "Long")
	if !errors.Is(err, failed) {
		t.Errorf("got %v, want it to wrap %v", err, failed)
	}
	want := "set the time slices of GPU gpu-0000-1b-00-0 to Long: nvidia-smi compute-policy -i GPU-1 --set-timeslice 3: exit status 6: Unable to set timeslice:? Not Supported"
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

// The program is looked for in the root of the running driver, or in all roots; a link that leads nowhere from here is one, too.
func TestTool_Root(t *testing.T) {
	const usr, local = "usr/bin/nvidia-smi", "usr/local/nvidia/bin/nvidia-smi"
	for name, tt := range map[string]struct {
		first, second []string // files of the roots
		found         bool     // the driver of the second root runs
		want          string   // program; of the second root, unless there is none in either
	}{
		"mounted by the platform": {second: []string{local}, want: local},
		"in both places":          {second: []string{local, usr}, want: usr},
		"left over in the first":  {first: []string{usr}, second: []string{usr}, found: true, want: usr},
		"nowhere":                 {},
	} {
		dirs := [2]string{t.TempDir(), t.TempDir()}
		for i, files := range [][]string{tt.first, tt.second} {
			for _, file := range files {
				path := filepath.Join(dirs[i], file)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.Symlink("/etc/alternatives/nvidia--nvidia-smi", path)); err != nil {
					t.Fatal(err)
				}
			}
		}
		want := dirs[1] + " /" + tt.want
		if tt.want == "" {
			want = dirs[0] + " /" + usr
		}
		r := &runner{}
		tool := r.tool(dirs[:]...)
		if tt.found {
			tool.Found(driverroot.Root{Host: dirs[1], Here: dirs[1]})
		}
		err := tool.SetTimeSlice(t.Context(), sharedGPU(), "Long")
		if err != nil || len(r.ran) != 1 || !strings.HasPrefix(r.ran[0].Root+" "+r.ran[0].Command, want+" compute-policy") {
			t.Errorf("%s: ran %v, %v, want %s", name, r.ran, err, want)
		}
	}
}
