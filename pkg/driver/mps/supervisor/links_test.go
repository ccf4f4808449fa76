// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// A link in place of a directory of a daemon or of the supervisor itself leads nowhere: nothing is created, emptied or
// mounted at its other end, and its mode stays.
func TestDirectories_Links(t *testing.T) {
	for _, name := range []string{"supervisor", "dir", "pipe", "log", "shm"} {
		t.Run(name, func(t *testing.T) {
			base, elsewhere := t.TempDir(), t.TempDir()
			p := pathsOf(base, "gpu-0000-1b-00-0")
			link := map[string]string{"supervisor": filepath.Join(base, "mps"), "dir": p.dir, "pipe": p.pipe, "log": p.log, "shm": p.shm}[name]
			must(t, errors.Join(os.MkdirAll(filepath.Dir(link), 0o711), os.Chmod(elsewhere, 0o700),
				os.WriteFile(filepath.Join(elsewhere, "file"), nil, 0o600), os.Symlink(elsewhere, link)))
			create := func() error { return (Disk{}).MakeDirs(p) }
			if name == "supervisor" {
				create = func() error { return makeDir(link, 0o711) }
			}
			wantError(t, create(), link+" is not a directory")
			equal(t, "what is at the other end", map[string]fs.FileMode{"file": 0o600}, listing(t, elsewhere))
			if info, err := os.Stat(elsewhere); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("%s is %v, %v", elsewhere, info.Mode(), err)
			}
		})
	}
}
