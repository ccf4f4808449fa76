// SPDX-License-Identifier: Apache-2.0

package names

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// Running is the file, in the directory of a name, that a plugin of the name holds locked as long as it runs.
const Running = "cleave.lock"

// most bounds the number of entries of the plugins directory to examine: CSI drivers have theirs there as well.
const most = 1024

// Find lists the driver names, sorted and excluding own, under which Cleave has served the node: each has a directory in the
// kubelet's plugins directory with the file Running. NVIDIA's own driver, whose name may be one of them, has no such file (it keeps a
// checkpoint.json).
func Find(pluginsDir, own string) ([]string, error) {
	entries, err := os.ReadDir(pluginsDir) // sorted
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for other driver names: %w", err)
	}
	var found []string
	for _, e := range entries[:min(len(entries), most)] {
		name := e.Name()
		if name != own && e.IsDir() && hasServed(filepath.Join(pluginsDir, name)) && len(validation.IsDNS1123Subdomain(name)) == 0 {
			found = append(found, name)
		}
	}
	return found, nil
}

// hasServed reports whether a directory belongs to a Cleave plugin, running or not.
func hasServed(dir string) bool {
	info, err := os.Lstat(filepath.Join(dir, Running))
	return err == nil && info.Mode().IsRegular()
}

// Runs reports whether a plugin is running with the given state directory. Plugins of all releases lock the directory.
func Runs(dir string) (bool, error) {
	file, err := os.OpenFile(filepath.Join(filepath.Clean(dir), Running), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("check whether a plugin runs: %w", err)
	}
	defer func() { _ = file.Close() }() // also releases the lock
	err = store.Flock(file, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("check whether a plugin runs: %w", err)
	}
	return false, nil
}
