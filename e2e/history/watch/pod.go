// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// maxCgroup bounds the cgroup file of a process in bytes: a line per hierarchy, each with a path of at most PATH_MAX.
const maxCgroup = 64 << 10

// podCgroup is the cgroup of a pod: "pod<UID>" with the kubelet's cgroupfs driver, with underscores for dashes with its systemd
// driver (k8s.io/kubernetes, pkg/kubelet/cm/cgroup_manager_linux.go).
var podCgroup = regexp.MustCompile(`pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})`)

// podOf is the UID of the pod of a process, by its cgroup; empty if it has none, or cannot be seen under proc.
func podOf(proc string, pid int) string {
	f, err := os.Open(filepath.Join(proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return ""
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxCgroup))
	if err != nil {
		return ""
	}
	found := podCgroup.FindAllSubmatch(data, -1)
	if found == nil {
		return ""
	}
	// The innermost: this machine may be in a pod itself.
	return strings.ReplaceAll(string(found[len(found)-1][1]), "_", "-")
}
