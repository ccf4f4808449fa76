// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"strings"
)

// sysctl is a kernel setting and its value.
type sysctl struct {
	Path  string `json:"path"`
	Value string `json:"value"`
}

// kubeletSysctls are the settings that a kubelet changes on its machine.
var kubeletSysctls = []string{
	"/proc/sys/vm/overcommit_memory",
	"/proc/sys/vm/panic_on_oom",
	"/proc/sys/kernel/panic",
	"/proc/sys/kernel/panic_on_oops",
	"/proc/sys/kernel/keys/root_maxkeys",
	"/proc/sys/kernel/keys/root_maxbytes",
}

// readSysctls leaves out what this kernel does not have.
func readSysctls() []sysctl {
	var list []sysctl
	for _, path := range kubeletSysctls {
		if data, err := os.ReadFile(path); err == nil {
			list = append(list, sysctl{path, strings.TrimSpace(string(data))})
		}
	}
	return list
}

// restoreSysctls writes back those that changed.
func restoreSysctls(list []sysctl) error {
	for _, s := range list {
		data, err := os.ReadFile(s.Path)
		if err != nil || strings.TrimSpace(string(data)) == s.Value {
			continue
		}
		if err := os.WriteFile(s.Path, []byte(s.Value), 0); err != nil {
			return fmt.Errorf("restore the kernel setting %s: %w", s.Path, err)
		}
	}
	return nil
}
