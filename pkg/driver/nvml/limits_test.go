// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// Whether memory is limited by cgroup is asked where the kernel has the files for it, and of GPUs that can answer.
func TestLimitsMemory(t *testing.T) {
	for name, test := range map[string]struct {
		driver string
		files  []string // of the hierarchy
		region string   // of dmem.capacity, in the root
		mig    []int    // GPUs in MIG mode
		want   bool
	}{
		"old driver":                  {driver: "610.10"},
		"kernel without dmem":         {driver: "615.12", want: true},
		"dmem":                        {driver: "615.12", region: "nvidia/0000001b/vidmem 1", files: []string{"kubepods.slice/dmem.max"}, want: true},
		"dmem, enabled nowhere":       {driver: "615.12", region: "nvidia/0000001b/vidmem 1", files: []string{"kubepods.slice/memory.max"}},
		"dmem, GPU in MIG mode":       {driver: "615.12", region: "nvidia/0000001b/vidmem 1", files: []string{"a/dmem.max"}, mig: []int{0}, want: true},
		"dmem, all in MIG mode":       {driver: "615.12", region: "nvidia/0000001b/vidmem 1", files: []string{"a/dmem.max"}, mig: []int{0, 1, 2, 3, 4, 5, 6, 7}, want: true},
		"all in MIG mode, no regions": {driver: "615.12", region: "drm/1 1", files: []string{"a/dmem.max"}, mig: []int{0, 1, 2, 3, 4, 5, 6, 7}},
	} {
		t.Run(name, func(t *testing.T) {
			root, groups := filepath.Join(t.TempDir(), "root"), t.TempDir()
			_, err := sim.Create(root, "hgx-h100", sim.WithoutDeviceNodes(), sim.WithDriverVersion(test.driver))
			must(t, err)
			n, err := sim.Open(root)
			must(t, err)
			files := map[string]string{"cgroup.controllers": ""}
			for _, f := range test.files {
				files[f] = ""
			}
			if test.region != "" {
				files["dmem.capacity"] = test.region
			}
			for f, data := range files {
				path := filepath.Join(groups, f)
				must(t, os.MkdirAll(filepath.Dir(path), 0o700))
				must(t, os.WriteFile(path, []byte(data), 0o600))
			}
			for _, i := range test.mig {
				setMIGMode(t, n, i)
			}
			b := open(t, n)
			if got, err := b.LimitsMemory(t.Context(), b.gpu(0).PCI, groups); got != test.want || err != nil {
				t.Errorf("got %t, %v, want %t", got, err, test.want)
			}
		})
	}
}

// A GPU that does not answer, such as one that is closed for its reset, has not said that it limits nothing.
func TestLimitsMemory_Unanswered(t *testing.T) {
	b := newBed(t, "hgx-h100", sim.WithDriverVersion("615.12"))
	pci := b.gpu(0).PCI
	must(t, b.Release(t.Context(), pci))
	_, err := b.LimitsMemory(t.Context(), pci, t.TempDir())
	mustFail(t, err, gpu.ErrReleased)
}
