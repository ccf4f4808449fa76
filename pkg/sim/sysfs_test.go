// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvlib/pkg/nvpci"
)

// Programs by others read sysfs by go-nvlib's nvpci.
func TestSysfs_NVPCI(t *testing.T) {
	for model, want := range map[string]struct{ gpus, switches int }{"hgx-h100": {8, 4}, "a30": {2, 0}, "l40s": {4, 0}} {
		t.Run(model, func(t *testing.T) {
			root := createNode(t, model)
			pci := nvpci.New(nvpci.WithLogger(silentLogger{}), nvpci.WithPCIDevicesRoot(filepath.Join(root, "sys/bus/pci/devices")))
			gpus, err := pci.GetGPUs()
			must(t, err)
			switches, err := pci.GetNVSwitches()
			must(t, err)
			if len(gpus) != want.gpus || len(switches) != want.switches {
				t.Fatalf("found %d GPUs and %d switches, want %+v", len(gpus), len(switches), want)
			}
			n := openNode(t, root)
			for i, g := range gpus {
				d := n.Device(i)
				info, err := d.PCI()
				must(t, err)
				if g.Address != d.spec.bdf() || g.Driver != "nvidia" ||
					uint32(g.Device)<<16|uint32(g.Vendor) != info.DeviceID ||
					uint32(g.SubsystemDevice)<<16|uint32(g.SubsystemVendor) != info.SubsystemID {
					t.Errorf("GPU %d: %+v, NVML says %+v", i, g, info)
				}
				if bar1 := g.Resources[1]; bar1 == nil || uint64(bar1.End-bar1.Start)+1 != d.board.BAR1MiB<<20 {
					t.Errorf("GPU %d: BAR1 is %+v", i, bar1)
				}
				config, err := g.Config.Read()
				must(t, err)
				if config.GetVendorID() != g.Vendor || config.GetDeviceID() != g.Device {
					t.Errorf("GPU %d: configuration space of %x:%x", i, config.GetVendorID(), config.GetDeviceID())
				}
				if caps, err := config.GetPCICapabilities(); err != nil || caps.Standard[0x10] == nil {
					t.Errorf("GPU %d: capabilities %v, %v", i, caps, err)
				}
			}
		})
	}
}

// silentLogger drops warnings that a host without VFIO gives.
type silentLogger struct{}

func (silentLogger) Warningf(string, ...interface{}) {}

func TestDeviceByPCIBusID_ShortForms(t *testing.T) {
	n := testNode(t, "hgx-h100")
	bdf := n.devices[3].spec.bdf() // "0000:xx:00.0"
	for _, id := range []string{bdf, "0000" + bdf, bdf[5:], bdf[:10], "0:" + bdf[5:7] + ":0.0"} {
		d, err := n.DeviceByPCIBusID(id)
		if err != nil || d.index != 3 {
			t.Errorf("%s: %v, %v", id, d, err)
		}
	}
	for _, id := range []string{"", "3", "zz:00.0", bdf + ".1", "1:2:3:4.0", "0000:00:20.0"} {
		if d, err := n.DeviceByPCIBusID(id); err == nil {
			t.Errorf("%q is %v", id, d)
		}
	}
}
