// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Daemons of the host serve all tenants: their sockets and the pipes of the host's MPS server are in no container.
func TestRefresh_SocketsOfHost(t *testing.T) {
	b := newBed(t)
	pipes := filepath.Join(b.root, "tmp/nvidia-mps")
	must(t, os.MkdirAll(pipes, 0o700))
	t.Cleanup(func() {
		must(t, errors.Join(os.RemoveAll(filepath.Join(b.root, "tmp")), os.RemoveAll(filepath.Join(b.root, "var/run"))))
	})
	for _, path := range []string{"var/run/nvidia-persistenced/socket", "var/run/nvidia-fabricmanager/socket", "tmp/nvidia-mps/control"} {
		path = filepath.Join(b.root, path)
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		listener, err := net.Listen("unix", path)
		must(t, err)
		t.Cleanup(func() { _ = listener.Close() })
	}
	must(t, b.Refresh(t.Context(), b.node))
	spec, err := json.Marshal(b.onDisk())
	must(t, err)
	for _, part := range []string{"nvidia-mps", "nvidia-persistenced/", "nvidia-fabricmanager/", "/socket"} {
		if strings.Contains(string(spec), part) {
			t.Errorf("the spec gives containers %s: %s", part, spec)
		}
	}
}
