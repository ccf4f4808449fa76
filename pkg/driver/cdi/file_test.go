// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"tags.cncf.io/container-device-interface/specs-go"
)

// A spec replaces a link of its name, and is not written to its other end.
func TestSpecDir_Link(t *testing.T) {
	dir, other := t.TempDir(), filepath.Join(t.TempDir(), "passwd")
	link := filepath.Join(dir, "spec.json")
	must(t, errors.Join(os.WriteFile(other, []byte("the node's"), 0o600), os.Symlink(other, link)))
	d := openSpecDir(dir, testDriver)
	must(t, d.write(specOf("A=b"), "spec.json"))
	if data, err := os.ReadFile(other); string(data) != "the node's" || err != nil {
		t.Errorf("the file at the other end is %q, %v", data, err)
	}
	if info, err := os.Lstat(link); err != nil || !info.Mode().IsRegular() {
		t.Errorf("the spec is %v, %v", info.Mode(), err)
	}
}

// Each write that fails would take space that nobody gets back, of a file system that containerd and others need as well.
func TestSpecDir_FullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("no tmpfs can be mounted: %v", err)
	}
	defer func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) }()
	spec := specOf("A=" + strings.Repeat("b", 1<<20)) // more than one page, of any size, has room for
	for range 3 {
		if err := openSpecDir(dir, testDriver).write(spec, "spec.json"); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("got %v, want %v", err, syscall.ENOSPC)
		}
	}
	wantFiles(t, dir)
}

func TestSpecDir_Invalid(t *testing.T) {
	dir := t.TempDir()
	if err := openSpecDir(dir, testDriver).write(specOf("no variable"), "spec.json"); err == nil {
		t.Error("got no error")
	}
	wantFiles(t, dir)
}

// A plugin that is killed leaves the file that it was writing.
func TestOpenSpecDir_Sweeps(t *testing.T) {
	dir, old := t.TempDir(), time.Now().Add(-time.Hour)
	ours, library, others, fresh := "."+testDriver+"-gpu.json.123", "spec.123.tmp", ".other-gpu.json.123", "spec.456.tmp"
	for _, name := range []string{ours, library, others, fresh} {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		if name != fresh {
			must(t, os.Chtimes(filepath.Join(dir, name), old, old))
		}
	}
	openSpecDir(dir, testDriver)
	wantFiles(t, dir, others, fresh)
}

func specOf(env string) *specs.Spec {
	return &specs.Spec{Version: "0.5.0", Kind: testDriver + "/" + ClaimClass,
		Devices: []specs.Device{{Name: "a", ContainerEdits: specs.ContainerEdits{Env: []string{env}}}}}
}

func wantFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	var got []string
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}
