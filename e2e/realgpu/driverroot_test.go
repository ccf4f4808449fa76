// SPDX-License-Identifier: Apache-2.0

package realgpu

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
)

// TestDriverRoot_NvidiaSMI runs nvidia-smi as time slices need it, but only to list them, from where the plugin's pod sees
// the driver: of a driver on the host it has /usr and /etc/alternatives, and the image's links to /usr.
func TestDriverRoot_NvidiaSMI(t *testing.T) {
	ctx, b := onGPU(t, time.Minute)
	host := cmp.Or(os.Getenv("CLEAVE_GPU_DRIVER_ROOT"), "/")
	root := driverroot.Root{Host: host, Here: host}
	if host == "/" {
		root.Here = t.TempDir()
		must(t, os.CopyFS(root.Here, os.DirFS(filepath.Join(b.Source, "bin", "image", "host"))))
		for _, dir := range []string{"usr", "etc/alternatives"} {
			here := filepath.Join(root.Here, dir)
			err := errors.Join(os.MkdirAll(here, 0o700), unix.Mount(filepath.Join("/", dir), here, "", unix.MS_BIND|unix.MS_REC, ""))
			if dir != "usr" && errors.Is(err, fs.ErrNotExist) {
				continue // not every distribution has it
			}
			must(t, err)
			// Else what is mounted below, such as a driver in /usr/local/nvidia, is unmounted from the machine, too (mount_namespaces(7)).
			must(t, unix.Mount("", here, "", unix.MS_SLAVE|unix.MS_REC, ""))
			t.Cleanup(func() {
				if err := unix.Unmount(here, unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			})
		}
	}
	path, found := root.Find("nvidia-smi")
	if !found {
		t.Fatalf("no nvidia-smi below %s", root.Here)
	}
	if out, err := root.Run(ctx, path, "compute-policy", "--list"); err != nil || !strings.Contains(string(out), "Timeslice") {
		t.Errorf("run %s below %s: %v: %s", path, root.Here, err, out)
	}
}
