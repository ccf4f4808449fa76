// SPDX-License-Identifier: Apache-2.0

package records

import (
	"io/fs"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// faultyDisk is the real disk with errors where a test wants them.
type faultyDisk struct {
	Disk
	// fail returns the error of one call, nil to let it through. op is the method's name.
	fail func(op, path string) error
}

func (d faultyDisk) MkdirAll(path string, mode fs.FileMode) error {
	if err := d.fail("MkdirAll", path); err != nil {
		return err
	}
	return d.Disk.MkdirAll(path, mode)
}

func (d faultyDisk) ReadDir(path string) ([]string, error) {
	if err := d.fail("ReadDir", path); err != nil {
		return nil, err
	}
	return d.Disk.ReadDir(path)
}

func (d faultyDisk) ReadFile(path string, limit int64) ([]byte, error) {
	if err := d.fail("ReadFile", path); err != nil {
		return nil, err
	}
	return d.Disk.ReadFile(path, limit)
}

func (d faultyDisk) WriteFile(path string, data []byte) error {
	if err := d.fail("WriteFile", path); err != nil {
		return err
	}
	return d.Disk.WriteFile(path, data)
}

func (d faultyDisk) Rename(from, to string) error {
	if err := d.fail("Rename", from); err != nil {
		return err
	}
	return d.Disk.Rename(from, to)
}

func (d faultyDisk) Remove(path string) error {
	if err := d.fail("Remove", path); err != nil {
		return err
	}
	return d.Disk.Remove(path)
}

// failing makes one operation fail.
func failing(op string, err error) faultyDisk {
	return faultyDisk{fail: func(got, _ string) error {
		if got == op {
			return err
		}
		return nil
	}}
}

const uidA = types.UID("0d5a1c5e-0001-4a8e-9a57-6b1b0a7a5a01")

// sample is a valid record.
func sample(uid types.UID) *Record {
	return &Record{
		Format: 1,
		BootID: "8f3f2f4e-5f3f-4d58-a0ab-5e3a0a1a7d11",
		Claim:  Claim{Namespace: "team-a", Name: "train-gpus", UID: uid},
		Devices: []Device{
			{
				Request: "main/whole", Pool: "node-1", Device: "gpu-0000-18-00-0", GPU: "gpu-0000-18-00-0",
				UUID:         "GPU-6b1b0a7a-5a01-4a8e-9a57-0d5a1c5e0001",
				CDIDeviceIDs: []string{"gpu.cleave.dev/gpu=gpu-0000-18-00-0"},
			},
			{
				Request: "watch", Pool: "node-1", Device: "gpu-0000-2a-00-0", AdminAccess: true, GPU: "gpu-0000-2a-00-0",
				UUID:         "GPU-6b1b0a7a-5a01-4a8e-9a57-0d5a1c5e0002",
				CDIDeviceIDs: []string{"gpu.cleave.dev/gpu=gpu-0000-2a-00-0"},
			},
		},
	}
}

// openStore opens a store in a fresh folder of the real disk.
func openStore(t *testing.T) *Store {
	t.Helper()
	return openStoreIn(t, Disk{}, filepath.Join(t.TempDir(), "claims"))
}

func openStoreIn(t *testing.T, filesystem FileSystem, dir string) *Store {
	t.Helper()
	s, err := OpenStore(filesystem, dir)
	if err != nil {
		t.Fatalf("OpenStore: %v", err)
	}
	return s
}

// listAll gives every file under a folder, relative to it, in order.
func listAll(t *testing.T, dir string) []string {
	t.Helper()
	files := []string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			files = append(files, rel)
		}
		return err
	})
	if err != nil {
		t.Fatalf("list %s: %v", dir, err)
	}
	return files
}
