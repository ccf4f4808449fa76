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

// most bounds how many entries of the plugins directory are looked at: CSI drivers have theirs there, too.
const most = 1024

// Find lists the driver names, other than one's own, by which Cleave has served the node, in order: each has a directory in the
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

// hasServed reports whether a plugin of Cleave has had a directory.
func hasServed(dir string) bool {
	info, err := os.Lstat(filepath.Join(dir, Running))
	return err == nil && info.Mode().IsRegular()
}

// Runs reports whether a plugin runs by the name of a state directory. It holds the directory's lock, in any release.
func Runs(dir string) (bool, error) {
	file, err := os.OpenFile(filepath.Join(filepath.Clean(dir), Running), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("check whether a plugin runs: %w", err)
	}
	defer func() { _ = file.Close() }() // and the lock with it
	err = store.Flock(file, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("check whether a plugin runs: %w", err)
	}
	return false, nil
}
