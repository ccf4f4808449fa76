// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// The root of a container is a tenant's image. Links in it lead the hook, which runs as root of the node, nowhere outside.
func TestCreateSymlinks_HostileImage(t *testing.T) {
	for name, to := range map[string]func(outside string) string{
		"a directory":      nil,
		"an absolute link": func(outside string) string { return outside },
		"a relative link":  func(outside string) string { return "../../../../../../../../../../../.." + outside },
	} {
		t.Run(name, func(t *testing.T) {
			bundle, outside := t.TempDir(), t.TempDir()
			root := filepath.Join(bundle, "rootfs")
			spec, err := json.Marshal(map[string]any{"root": map[string]string{"path": "rootfs"}})
			if err != nil {
				t.Fatal(err)
			}
			state, err := json.Marshal(map[string]any{"ociVersion": "1.0.0", "id": "x", "status": "creating", "bundle": bundle})
			if err != nil {
				t.Fatal(err)
			}
			stateFile := filepath.Join(bundle, "state.json")
			lib := filepath.Join(root, "usr", "lib")
			if err := os.MkdirAll(lib, 0o700); err != nil {
				t.Fatal(err)
			}
			if to != nil {
				if err := errors.Join(os.Remove(lib), os.Symlink(to(outside), lib)); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(
				os.WriteFile(filepath.Join(bundle, "config.json"), spec, 0o600), os.WriteFile(stateFile, state, 0o600),
				os.WriteFile(filepath.Join(outside, "libcuda.so"), []byte("the node's"), 0o600)); err != nil {
				t.Fatal(err)
			}
			err = newCommand().Run(t.Context(), []string{"nvidia-cdi-hook", "create-symlinks", "--container-spec", stateFile,
				"--link", "libcuda.so.1::/usr/lib/libcuda.so", "--link", "libcuda.so.1::/usr/lib/new/libcuda.so"})
			if (err == nil) != (to == nil) {
				t.Errorf("the hook returns %v", err)
			}
			if data, err := os.ReadFile(filepath.Join(outside, "libcuda.so")); string(data) != "the node's" || err != nil {
				t.Errorf("the node's file is now %q, %v", data, err)
			}
			if _, err := os.Lstat(filepath.Join(outside, "new")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("something was made outside the container's root (%v)", err)
			}
			if link, err := os.Readlink(filepath.Join(lib, "libcuda.so")); to == nil && (err != nil || link != "libcuda.so.1") {
				t.Errorf("the link in the container is %q, %v", link, err)
			}
		})
	}
}
