// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// moduleDir is the driver's directory in sysfs while it is loaded. A directory of sysfs has an inode number that is never reused
// (Linux, fs/kernfs/dir.c, idr_alloc_cyclic), which distinguishes a reloaded driver from the previous one. So directories of
// unloaded ones are set aside to prevent reuse of their inode numbers here.
const moduleDir = "sys/module/nvidia"

// addModule adds the files of the module to sysfs.
func (s *spec) addModule(files map[string]treeFile) {
	addFile(files, "module/nvidia/initstate", "live\n")
	addFile(files, "module/nvidia/version", s.DriverVersion+"\n")
}

// unloadModule removes the module from sysfs.
func (f *Files) unloadModule(s *nodeState) error {
	if f.root == "" {
		return nil
	}
	s.Unloads++
	err := os.Rename(filepath.Join(f.root, moduleDir), filepath.Join(f.root, stateDir, fmt.Sprintf("module-%d", s.Unloads)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// loadModule adds the module to sysfs, unless it is there.
func (f *Files) loadModule() error {
	if f.root == "" {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(f.root, moduleDir)); err == nil {
		return nil
	}
	files := map[string]treeFile{}
	f.spec.addModule(files)
	return writeTree(filepath.Join(f.root, "sys"), files, 0o444)
}
