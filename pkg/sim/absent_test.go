// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"os"
	"path/filepath"
	"testing"
)

func TestSetAbsent_Files(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("device files need root")
	}
	for name, below := range map[string]string{"own dev": "", "another root's dev": "host"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			root, devices := filepath.Join(dir, "root"), filepath.Join(dir, "root")
			var opts []Option
			if below != "" {
				devices = filepath.Join(dir, below)
				opts = append(opts, WithDevRoot(devices))
			}
			if _, err := Create(root, "a30", opts...); err != nil {
				t.Fatal(err)
			}
			n := openNode(t, root)
			check := func(when string, want bool) {
				t.Helper()
				for _, file := range []string{filepath.Join(devices, "dev/nvidia1"), filepath.Join(root, "sys/bus/pci/devices", n.spec.GPUs[1].bdf())} {
					if _, err := os.Lstat(file); (err == nil) != want {
						t.Errorf("%s: %s: got %v, want it there: %t", when, file, err, want)
					}
				}
			}
			check("before", true)
			must(t, n.Hardware().SetAbsent(1, true))
			check("absent", false)
			must(t, n.Faults().Clear(1))
			check("cleared", true)
		})
	}
}
