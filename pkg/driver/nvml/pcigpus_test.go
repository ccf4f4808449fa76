// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// pciFunctions is a sysfs with these PCI functions: address -> vendor, class and bound driver.
func pciFunctions(functions map[string][3]string) fstest.MapFS {
	tree := fstest.MapFS{"bus/pci/devices": {Mode: fs.ModeDir | 0o755}}
	for address, f := range functions {
		dir := pciDevices + "/" + address
		tree[dir+"/vendor"] = &fstest.MapFile{Data: []byte(f[0] + "\n")}
		tree[dir+"/class"] = &fstest.MapFile{Data: []byte(f[1] + "\n")}
		if f[2] != "" {
			tree[dir+"/driver"] = &fstest.MapFile{Data: []byte("../../../bus/pci/drivers/" + f[2]), Mode: fs.ModeSymlink}
		}
	}
	return tree
}

func TestPCIGPUs(t *testing.T) {
	sysfs := pciFunctions(map[string][3]string{
		"0000:18:00.0": {"0x10de", "0x030200", "nvidia"},
		"0000:19:00.0": {"0x10de", "0x030000", ""},
		"0000:1a:00.0": {"0x10de", "0x030200", "vfio-pci"},
		"0000:05:00.0": {"0x10de", "0x068000", ""}, // an NVSwitch
		"0000:18:00.1": {"0x10de", "0x040300", ""}, // an audio function
		"0000:00:02.0": {"0x8086", "0x030000", ""},
	})
	got, err := pciGPUs(sysfs, nil)
	must(t, err)
	want := []pciGPU{
		{gpu.PCIAddress{Bus: 0x18}, "nvidia"}, {gpu.PCIAddress{Bus: 0x19}, ""}, {gpu.PCIAddress{Bus: 0x1a}, "vfio-pci"},
	}
	equal(t, "functions", want, got, cmp.AllowUnexported(pciGPU{}))
}

func TestSession_Absent(t *testing.T) {
	here, gone := gpu.PCIAddress{Bus: 0x18}, gpu.PCIAddress{Bus: 0x19}
	other := map[string][3]string{"0000:18:00.0": {"0x10de", "0x030200", ""}}
	tests := map[string]struct {
		functions map[string][3]string
		listed    bool
		pci       gpu.PCIAddress
		want      bool
	}{
		"present":                      {other, true, here, false},
		"removed, others present":      {other, false, gone, true},
		"removed, the only one":        {nil, true, gone, true},
		"sysfs never listed any":       {nil, false, gone, false},
		"a function of another vendor": {map[string][3]string{"0000:00:02.0": {"0x8086", "0x030000", ""}}, false, gone, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			v := &inventory{sysfs: pciFunctions(test.functions), listed: map[gpu.PCIAddress]bool{test.pci: test.listed}}
			if got := v.absent(test.pci); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
	if (&inventory{sysfs: fstest.MapFS{}, listed: map[gpu.PCIAddress]bool{gone: true}}).absent(gone) {
		t.Error("without a list of PCI functions: got true, want false")
	}
}
