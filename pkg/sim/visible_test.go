// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestVisible(t *testing.T) {
	root := createNode(t, "hgx-h100")
	whole := openNode(t, root)
	// A container has the libraries and some device files; plain files do for these.
	inside := t.TempDir()
	lib := filepath.Join(libraryDir, "libnvidia-sim.so.580.95.05")
	data, err := os.ReadFile(filepath.Join(root, lib))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{
		lib:                                data,
		"dev/nvidia5":                      nil, // index 4
		"dev/nvidia7":                      nil,
		"dev/nvidia-caps/nvidia-cap696":    nil, // GPU instance 2 of minor 5
		"dev/nvidia-caps/nvidia-cap697":    nil,
		"dev/nvidia-caps/nvidia-cap100000": nil,
	}
	for name, data := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(inside, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(inside, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n, partitions, err := OpenVisible(inside)
	if err != nil {
		t.Fatal(err)
	}
	var uuids []string
	for _, d := range n.devices {
		uuids = append(uuids, d.spec.UUID)
	}
	if diff := cmp.Diff([]string{whole.devices[4].spec.UUID, whole.devices[7].spec.UUID}, uuids); diff != "" {
		t.Errorf("visible GPUs (-want +got):\n%s", diff)
	}
	uuid := MIGDeviceOf(whole.Device(4).MIG().ComputeInstanceHandle(2, 0, 1)).uuid()
	want := []VisiblePartition{{GPU: 0, GPUInstance: 2, UUID: uuid}}
	if diff := cmp.Diff(want, partitions); diff != "" {
		t.Errorf("visible partitions (-want +got):\n%s", diff)
	}
	if _, _, err := OpenVisible(t.TempDir()); err == nil {
		t.Error("a directory without a node was opened")
	}
}
