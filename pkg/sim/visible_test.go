// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
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
	must(t, err)
	files := map[string][]byte{
		lib:                                data,
		"dev/nvidia5":                      nil, // index 4
		"dev/nvidia7":                      nil,
		"dev/nvidia-caps/nvidia-cap696":    nil, // GPU instance 2 of minor 5
		"dev/nvidia-caps/nvidia-cap697":    nil,
		"dev/nvidia-caps/nvidia-cap100000": nil,
	}
	for name, data := range files {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(inside, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(inside, name), data, 0o600))
	}
	n, partitions, err := OpenVisible(inside)
	must(t, err)
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

// TestUsable: a program uses the GPUs that it has device files for, unless they are in MIG mode, and of partitions the first alone.
func TestUsable(t *testing.T) {
	n := openNode(t, createNode(t, "hgx-h100"))
	if activation, err := n.Device(4).MIG().SetMIGMode(true); err != nil || activation != nil {
		t.Fatal(activation, err)
	}
	whole := func(i int) VisiblePartition {
		return VisiblePartition{GPU: i, GPUInstance: -1, ComputeInstance: -1, UUID: n.devices[i].spec.UUID}
	}
	part := VisiblePartition{GPU: 4, GPUInstance: 2, UUID: MIGDeviceOf(n.Device(4).MIG().ComputeInstanceHandle(2, 0, 1)).uuid()}
	for name, tt := range map[string]struct {
		files []string
		want  []VisiblePartition
	}{
		"nothing":                {},
		"a GPU in MIG mode":      {files: []string{"nvidia5"}},
		"GPUs":                   {[]string{"nvidia7", "nvidia0", "nvidia5"}, []VisiblePartition{whole(0), whole(7)}},
		"a partition":            {[]string{"nvidia5", "nvidia-caps/nvidia-cap696", "nvidia-caps/nvidia-cap697"}, []VisiblePartition{part}},
		"partitions and a GPU":   {[]string{"nvidia0", "nvidia5", "nvidia-caps/nvidia-cap697", "nvidia-caps/nvidia-cap706"}, []VisiblePartition{part}},
		"a partition's GPU only": {files: []string{"nvidia5", "nvidia-caps/nvidia-cap696"}},
	} {
		inside := t.TempDir()
		for _, file := range tt.files {
			path := filepath.Join(inside, "dev", file)
			must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o600)))
		}
		got, err := n.Clients().Usable(inside)
		if diff := cmp.Diff(tt.want, got); diff != "" || (err != nil) != (tt.want == nil) {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}
