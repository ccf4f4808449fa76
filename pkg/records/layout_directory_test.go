// SPDX-License-Identifier: Apache-2.0

package records

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A directory in a layout's place is set aside like any other file that is no layout, as it is for claims.
func TestLayoutStoreRead_DirectoryInItsPlace(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenLayouts(NewDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "gpu-0.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err = s.Read("gpu-0")
	bad := (*CorruptLayoutError)(nil)
	if !errors.As(err, &bad) {
		t.Fatalf("got %v, want a CorruptLayoutError", err)
	}
	if _, err := s.SetAside("gpu-0"); err != nil {
		t.Error(err)
	}
	if l, err := s.Read("gpu-0"); l != nil || err != nil {
		t.Errorf("after it is set aside: got %v, %v", l, err)
	}
}
