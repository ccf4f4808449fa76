// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// BootID identifies the current boot of the node: random(4), boot_id.
func BootID(procfs string) (string, error) {
	path := filepath.Join(procfs, "sys/kernel/random/boot_id")
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the boot ID: %w", err)
	}
	id := strings.TrimSpace(string(data))
	if id == "" {
		return "", fmt.Errorf("read the boot ID: %s is empty", path)
	}
	return id, nil
}
