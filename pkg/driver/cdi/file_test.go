// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"tags.cncf.io/container-device-interface/specs-go"
)

// A spec replaces a link of its name, and is not written to its other end.
func TestSpecDir_Link(t *testing.T) {
	dir, other := t.TempDir(), filepath.Join(t.TempDir(), "passwd")
	link := filepath.Join(dir, "spec.json")
	must(t, errors.Join(os.WriteFile(other, []byte("the node's"), 0o600), os.Symlink(other, link)))
	d, err := openSpecDir(dir)
	must(t, err)
	spec := &specs.Spec{Version: "0.5.0", Kind: testDriver + "/" + ClaimClass,
		Devices: []specs.Device{{Name: "a", ContainerEdits: specs.ContainerEdits{Env: []string{"A=b"}}}}}
	must(t, d.write(spec, "spec.json"))
	if data, err := os.ReadFile(other); string(data) != "the node's" || err != nil {
		t.Errorf("the file at the other end is %q, %v", data, err)
	}
	if info, err := os.Lstat(link); err != nil || !info.Mode().IsRegular() {
		t.Errorf("the spec is %v, %v", info.Mode(), err)
	}
}
