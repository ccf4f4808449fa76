// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
)

// Environment marks a process as one of the cluster's, in the form of os.Environ: Down ends it with the others.
func (c *Cluster) Environment() []string {
	return []string{ownerVariable + "=" + c.layout.dir}
}

// GuestDir makes and returns a directory for what runs alongside the cluster's own programs. Down removes it.
func (c *Cluster) GuestDir(name string) (string, error) {
	dir := c.layout.path("guests", name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("create a directory in the cluster's: %w", err)
	}
	return dir, nil
}
