// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
)

// withLibrary puts the library into a root, as a file or, as Debian's packages do, behind a chain of absolute links.
func withLibrary(t *testing.T, root string, linked bool) (path string) {
	t.Helper()
	path = filepath.Join(root, "usr/lib/x86_64-linux-gnu", driverroot.LibraryName)
	target := filepath.Join(root, "usr/lib/x86_64-linux-gnu/nvidia/current", driverroot.LibraryName)
	if !linked {
		target = path
	}
	must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.MkdirAll(filepath.Dir(target), 0o700),
		os.WriteFile(target, nil, 0o600)))
	if linked {
		alternative := filepath.Join(root, "etc/alternatives/nvidia--"+driverroot.LibraryName)
		must(t, errors.Join(os.MkdirAll(filepath.Dir(alternative), 0o700),
			os.Symlink("/etc/alternatives/nvidia--"+driverroot.LibraryName,
				path), os.Symlink("/usr/lib/x86_64-linux-gnu/nvidia/current/"+driverroot.LibraryName, alternative)))
	}
	return target
}

func TestFindLibrary_FirstRoot(t *testing.T) {
	temp := func() string {
		dir, err := filepath.EvalSymlinks(t.TempDir())
		must(t, err)
		return dir
	}
	for _, linked := range []bool{false, true} {
		empty, first, second := temp(), temp(), temp()
		want := withLibrary(t, first, linked)
		withLibrary(t, second, linked)
		got, err := find(Options{DriverRoot: empty, OtherRoots: []string{first, second}})
		if err != nil || len(got) != 2 || got[0] != (candidate{want, first}) || got[1].root != second {
			t.Errorf("links %t: got %v, %v, want %s of %s first", linked, got, err, want, first)
		}
		// A library that is given elsewhere does not change where the driver's other files are.
		got, err = find(Options{DriverRoot: empty, OtherRoots: []string{second}, LibraryPath: want})
		if err != nil || len(got) != 1 || got[0] != (candidate{want, second}) {
			t.Errorf("links %t, given: got %v, %v, want %s of %s", linked, got, err, want, second)
		}
		stale := func(_ context.Context, path string) error {
			if path == want {
				return errors.New("of another release than the kernel module")
			}
			return nil
		}
		root, err := FindRoot(t.Context(), Options{DriverRoot: empty, OtherRoots: []string{first, second}, Probe: stale})
		if err != nil || root != second {
			t.Errorf("links %t: got root %s, %v, want that of the running driver, %s", linked, root, err, second)
		}
	}
}

func TestFindLibrary_None(t *testing.T) {
	a, b, jetson := t.TempDir(), t.TempDir(), t.TempDir()
	missing := filepath.Join(a, driverroot.LibraryName)
	must(t, errors.Join(os.Mkdir(filepath.Join(jetson, "etc"), 0o700),
		os.WriteFile(filepath.Join(jetson, "etc/nv_tegra_release"), []byte("# R35 (release), REVISION: 4.1"), 0o600)))
	for name, tt := range map[string]struct {
		opts Options
		says []string
	}{
		"no driver":   {Options{DriverRoot: a, OtherRoots: []string{b}}, []string{driverroot.LibraryName, a, b, "--driver-root", "--nvml-library"}},
		"wrong path":  {Options{DriverRoot: a, LibraryPath: missing}, []string{missing, "--nvml-library"}},
		"on a Jetson": {Options{DriverRoot: a, OtherRoots: []string{jetson}}, []string{"Jetson", "device plugin"}},
	} {
		_, err := FindLibrary(tt.opts)
		wantError(t, err, tt.says...)
		if !errors.Is(err, gpu.ErrLibraryNotFound) {
			t.Errorf("%s: got %v, want %v", name, err, gpu.ErrLibraryNotFound)
		}
	}
}
