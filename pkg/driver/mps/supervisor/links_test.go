// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A link in place of a directory of a daemon or of the supervisor itself leads nowhere: nothing is created, emptied or
// mounted at its other end, and its mode stays.
func TestDirectories_Links(t *testing.T) {
	for _, name := range []string{"dir", "pipe", "log", "shm"} {
		t.Run(name, func(t *testing.T) {
			base, elsewhere := t.TempDir(), t.TempDir()
			p := pathsOf(base, "gpu-0000-1b-00-0")
			link := map[string]string{"dir": p.dir, "pipe": p.pipe, "log": p.log, "shm": p.shm}[name]
			if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o711), os.Chmod(elsewhere, 0o700),
				os.WriteFile(filepath.Join(elsewhere, "file"), nil, 0o600), os.Symlink(elsewhere, link)); err != nil {
				t.Fatal(err)
			}
			wantError(t, (Disk{}).MakeDirs(p), link+" is not a directory")
			checkUntouched(t, elsewhere)
		})
	}
	base, elsewhere := t.TempDir(), t.TempDir()
	link := filepath.Join(base, "mps")
	if err := errors.Join(os.Chmod(elsewhere, 0o700), os.WriteFile(filepath.Join(elsewhere, "file"), nil, 0o600),
		os.Symlink(elsewhere, link)); err != nil {
		t.Fatal(err)
	}
	wantError(t, makeDir(link, 0o711), link+" is not a directory")
	checkUntouched(t, elsewhere)
}

// checkUntouched checks that a directory of mode 0700 has its one file.
func checkUntouched(t *testing.T, dir string) {
	t.Helper()
	if diff := cmp.Diff(map[string]fs.FileMode{"file": 0o600}, listing(t, dir)); diff != "" {
		t.Errorf("%s at the other end of the link (-want +got):\n%s", dir, diff)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%s is %v, %v", dir, info.Mode(), err)
	}
}
