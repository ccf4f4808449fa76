// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// createNode creates a node on disk, without what only root may make.
func createNode(t *testing.T, model string) (root string) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "root")
	if _, err := Create(root, model, WithoutDeviceNodes()); err != nil {
		t.Fatal(err)
	}
	return root
}

// openNode opens a node, as another process would, with a session.
func openNode(t *testing.T, root string) *Node {
	t.Helper()
	n, err := Open(root)
	must(t, err)
	must(t, n.Init())
	keep(t, n)
	return n
}

func TestDisk_TwoProcesses(t *testing.T) {
	root := createNode(t, "hgx-h100")
	one, two := openNode(t, root), openNode(t, root)
	intoMIG(t, one.Device(2))
	if on, _, err := two.Device(2).MIG().MIGMode(); !on || err != nil {
		t.Errorf("mode seen by the other = %v, %v", on, err)
	}
	gi, err := two.Device(2).MIG().CreateGPUInstanceWithPlacement(19, gpu.Placement{Start: 6, Size: 1})
	must(t, err)
	if _, err := one.Device(2).MIG().CreateGPUInstanceWithPlacement(15, gpu.Placement{Start: 6, Size: 2}); !errors.Is(err, gpu.ErrInsufficientResources) {
		t.Errorf("a placement the other has taken = %v", err)
	}
	found, err := one.Device(2).MIG().GPUInstanceByID(gi.ID())
	must(t, err)
	must(t, found.Destroy())
	if _, err := gi.Info(); !errors.Is(err, gpu.ErrInvalidArgument) {
		t.Errorf("what the other destroyed = %v", err)
	}
	must(t, one.Hardware().Lose(5))
	if _, err := two.Device(5).UUID(); !errors.Is(err, gpu.ErrLost) {
		t.Errorf("what the other lost = %v", err)
	}
	before, err := one.Status()
	must(t, err)
	after, err := openNode(t, root).Status()
	if diff := cmp.Diff(before, after); diff != "" || err != nil {
		t.Errorf("a restart, %v (-before +after):\n%s", err, diff)
	}
}

// entries lists the capability entries of a GPU's partitions.
func entries(t *testing.T, root string, minor int) []string {
	t.Helper()
	var found []string
	dir := filepath.Join(root, capabilityDir(minor))
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Name() == "access" {
			data, readErr := os.ReadFile(path)
			first, _, _ := strings.Cut(string(data), "\n")
			rel, relErr := filepath.Rel(dir, path)
			found = append(found, rel+" "+first)
			return errors.Join(readErr, relErr)
		}
		return err
	})
	must(t, err)
	return found
}

func TestCapabilities(t *testing.T) {
	root := createNode(t, "hgx-h100")
	n := openNode(t, root)
	d := n.Device(4) // minor 5
	intoMIG(t, d)
	for range 2 { // the second time entries are taken back
		gi, err := d.MIG().CreateGPUInstanceWithPlacement(9, gpu.Placement{Start: 4, Size: 4})
		must(t, err)
		ci, err := gi.CreateComputeInstance(2)
		must(t, err)
		want := []string{"gi2/access DeviceFileMinor: 696", "gi2/ci0/access DeviceFileMinor: 697"}
		if diff := cmp.Diff(want, entries(t, root, 5)); diff != "" {
			t.Errorf("entries (-want +got):\n%s", diff)
		}
		minors, err := os.ReadFile(filepath.Join(root, "proc/driver/nvidia-caps/mig-minors"))
		if err != nil || !strings.Contains(string(minors), "gpu5/gi2/ci0/access 697\n") {
			t.Errorf("mig-minors disagrees, %v", err)
		}
		must(t, errors.Join(ci.Destroy(), gi.Destroy()))
		if left := entries(t, root, 5); len(left) > 0 {
			t.Errorf("entries left: %v", left)
		}
	}
}

func TestDisk_Reboot(t *testing.T) {
	root := createNode(t, "dgx-a100")
	n := openNode(t, root)
	if activation, err := n.Device(1).MIG().SetMIGMode(true); activation != nil || err != nil {
		t.Fatal(activation, err)
	}
	if _, err := n.Device(1).MIG().CreateGPUInstance(19); err != nil {
		t.Fatal(err)
	}
	must(t, n.Hardware().Lose(0))
	boot := func() string {
		data, err := os.ReadFile(filepath.Join(root, "proc/sys/kernel/random/boot_id"))
		must(t, err)
		return strings.TrimSpace(string(data))
	}
	before := boot()
	must(t, n.Driver().Reboot())
	if st, err := openNode(t, root).Status(); err != nil || st.BootID != boot() || st.BootID == before {
		t.Errorf("boot id in the file %s, before %s, %v", boot(), before, err)
	}
	if left := entries(t, root, 3); len(left) > 0 {
		t.Errorf("entries after the reboot: %v", left)
	}
	if on, _, err := n.Device(1).MIG().MIGMode(); !on || err != nil {
		t.Errorf("mode after the reboot = %v, %v", on, err)
	}
	if _, err := n.Device(0).UUID(); err != nil {
		t.Errorf("the lost GPU after the reboot: %v", err)
	}
}

func TestDriverUnload(t *testing.T) {
	root := createNode(t, "hgx-h100")
	n, err := Open(root)
	must(t, err)
	must(t, n.Clients().Add(0, Client{PID: 7, Name: "dcgm", GPUInstance: -1}))
	if err := n.Driver().Unload(); err == nil || !strings.Contains(err.Error(), "process 7 (dcgm)") {
		t.Errorf("Unload with a client = %v", err)
	}
	must(t, n.Clients().Remove(0, 7))
	must(t, n.Driver().Unload())
	version := filepath.Join(root, "proc/driver/nvidia/version")
	if _, err := os.Stat(version); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there: %v", version, err)
	}
	other, err := Open(root)
	must(t, err)
	if err := other.Init(); !errors.Is(err, gpu.ErrDriverNotLoaded) {
		t.Errorf("Init without the driver = %v", err)
	}
	must(t, n.Driver().Load())
	if _, err := os.Stat(version); err != nil {
		t.Error(err)
	}
	if err := other.Init(); err != nil {
		t.Errorf("Init with the driver back = %v", err)
	}
}

func TestCreate_NotEmpty(t *testing.T) {
	root := createNode(t, "t4")
	if _, err := Create(root, "t4", WithoutDeviceNodes()); !errors.Is(err, ErrExists) {
		t.Errorf("Create over a node = %v", err)
	}
	old := openNode(t, root)
	if _, err := Create(root, "l40s", WithoutDeviceNodes(), WithForce()); err != nil {
		t.Errorf("Create with force = %v", err)
	}
	if !old.Replaced() || openNode(t, root).Replaced() {
		t.Error("Replaced does not distinguish the new node from the old")
	}
	must(t, os.Remove(filepath.Join(root, stateDir, "node.json")))
	if _, err := Open(root); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "nvml-sim create") {
		t.Errorf("Open of half a node = %v", err)
	}
	if _, err := Create(root, "t4", WithoutDeviceNodes()); err != nil {
		t.Errorf("Create over half a node = %v", err)
	}
	full := t.TempDir()
	must(t, os.WriteFile(filepath.Join(full, "notes"), nil, 0o600))
	if _, err := Create(full, "t4", WithForce()); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Create in a directory with other files = %v", err)
	}
	if _, err := Create("/", "t4", WithForce()); err == nil {
		t.Error("Create in / was taken")
	}
	if err := Remove(full); err == nil {
		t.Error("Remove of a directory without a node was taken")
	}
	if err := Remove(root); err != nil {
		t.Error(err)
	}
}

func TestDisk_DamagedState(t *testing.T) {
	root := createNode(t, "hgx-h100")
	n := openNode(t, root)
	file := filepath.Join(root, stateDir, "gpu-3.json")
	must(t, os.WriteFile(file, []byte(`{"mig":true,"instances":[{"id":9,"profile":19,"start":1}]}`), 0o600))
	if _, err := openNode(t, root).Status(); err == nil || !strings.Contains(err.Error(), "gpu-3.json") {
		t.Errorf("Status with a damaged file = %v", err)
	}
	if _, _, err := n.Device(3).MIG().MIGMode(); !isCode(err, CodeUnknown) {
		t.Errorf("a call on the damaged GPU = %v", err)
	}
	if _, _, err := n.Device(2).MIG().MIGMode(); err != nil {
		t.Errorf("a call on another GPU = %v", err)
	}
}

// Several processes create and destroy partitions of one GPU at once: each placement is had by one at a time, and in the
// end nothing is left.
func TestDisk_Locking(t *testing.T) {
	root := createNode(t, "hgx-h100")
	first := openNode(t, root)
	intoMIG(t, first.Device(0))
	var held [7]sync.Mutex
	var wg sync.WaitGroup
	for range 4 {
		d := openNode(t, root).Device(0)
		for range 2 {
			wg.Go(func() {
				for i := range 60 {
					start := i % len(held)
					gi, err := d.MIG().CreateGPUInstanceWithPlacement(19, gpu.Placement{Start: start, Size: 1})
					if errors.Is(err, gpu.ErrInsufficientResources) {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					if !held[start].TryLock() {
						t.Errorf("placement %d is had twice", start)
						return
					}
					held[start].Unlock()
					if err := gi.Destroy(); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	st, err := first.Status()
	if err != nil || len(st.GPUs[0].Instances) > 0 {
		t.Errorf("left: %v, %v", st.GPUs[0].Instances, err)
	}
	if left := entries(t, root, 0); len(left) > 0 {
		t.Errorf("entries left: %v", left)
	}
}

func TestDriverRoot(t *testing.T) {
	root := createNode(t, "hgx-h100")
	for name, want := range map[string]string{
		"usr/lib/x86_64-linux-gnu/libcuda.so":                    "libcuda.so.1",
		"usr/lib/x86_64-linux-gnu/libcuda.so.1":                  "libcuda.so.580.95.05",
		"usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.1": "libnvidia-ptxjitcompiler.so.580.95.05",
		"sys/bus/pci/devices/0000:1b:00.0":                       "../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:03.0/0000:1b:00.0",
	} {
		if got, err := os.Readlink(filepath.Join(root, name)); got != want || err != nil {
			t.Errorf("%s -> %s, %v, want %s", name, got, err, want)
		}
	}
	for name, want := range map[string]string{
		"proc/driver/nvidia/version":                       "580.95.05",
		"proc/driver/nvidia/gpus/0000:9d:00.0/information": "Device Minor: \t 5",
		"proc/driver/nvidia/capabilities/mig/config":       "DeviceFileMinor: 1",
		"proc/devices": "508 nvidia-caps",
		"lib/firmware/nvidia/580.95.05/gsp_ga10x.bin": "simulated",
		"sys/bus/pci/devices/0000:1b:00.0/numa_node":  "0\n",
		"sys/bus/pci/devices/0000:df:00.0/numa_node":  "1\n",
		"usr/bin/nvidia-cuda-mps-control":             "simulated node",
	} {
		if data, err := os.ReadFile(filepath.Join(root, name)); !strings.Contains(string(data), want) || err != nil {
			t.Errorf("%s has no %q: %v", name, want, err)
		}
	}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode()&fs.ModeSymlink == 0 && info.Mode().Perm()&0o002 != 0 {
			t.Errorf("%s may be written by all", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
