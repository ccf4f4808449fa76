// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPodOf(t *testing.T) {
	const uid = "0f3c8a52-1d5e-4b7a-9c40-6d2b8e7f1a03"
	for _, tc := range []struct{ name, cgroup, want string }{
		{"version 2, cgroupfs", "0::/kubepods/besteffort/pod" + uid + "/4be1\n", uid},
		{"version 2, systemd", "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0f3c8a52_1d5e_4b7a_9c40_6d2b8e7f1a03.slice/cri-containerd-4be1.scope\n", uid},
		{"version 1", "3:cpu:/\n2:memory:/kubepods/pod" + uid + "/4be1\n", uid},
		{"in a pod itself", "0::/kubepods/podaaaaaaaa-1d5e-4b7a-9c40-6d2b8e7f1a03/c0/kubepods/besteffort/pod" + uid + "/4be1\n", uid},
		{"seen from a cgroup namespace", "0::/../../pod" + uid + "/4be1\n", uid},
		{"no pod", "0::/system.slice/sshd.service\n", ""},
		{"a name like one", "0::/podman/pod1234\n", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			proc := t.TempDir()
			if err := os.Mkdir(filepath.Join(proc, "12"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(proc, "12", "cgroup"), []byte(tc.cgroup), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := podOf(proc, 12); got != tc.want {
				t.Errorf("pod %q, want %q", got, tc.want)
			}
			if got := podOf(proc, 13); got != "" {
				t.Errorf("pod %q of a process that is not there", got)
			}
		})
	}
}
