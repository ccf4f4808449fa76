// SPDX-License-Identifier: Apache-2.0

package filewatch

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// timeout bounds a wait for what must come.
const timeout = 30 * time.Second

// watching starts to watch a path, and returns a function that waits until a change is reported.
func watching(t *testing.T, path string) (seen func(what string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	changes, done := make(chan struct{}, 100), make(chan error, 1)
	go func() {
		defer close(done)
		if err := Watch(ctx, path, func() { changes <- struct{}{} }); err != nil {
			done <- err
		}
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	// The watch is there once a change of the watched directory is reported: before, changes may be missed.
	probe := time.NewTicker(2 * quietPeriod)
	defer probe.Stop()
	for begun := false; !begun; {
		rewrite(t, filepath.Join(filepath.Dir(path), mountLink), "")
		select {
		case <-changes:
			begun = true
		case err := <-done:
			t.Fatalf("the watch ended: %v", err)
		case <-probe.C:
		}
	}
	if err := os.Remove(filepath.Join(filepath.Dir(path), mountLink)); err != nil {
		t.Fatal(err)
	}
	seen = func(what string) {
		t.Helper()
		select {
		case <-changes:
		case <-time.After(timeout):
			t.Fatalf("%s: no change is reported", what)
		}
	}
	seen("the probe goes")
	return seen
}

func rewrite(t *testing.T, path, data string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWatch_FileReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "policy.yaml")
	seen := watching(t, path)
	rewrite(t, path, "a")
	seen("it comes")
	rewrite(t, path, "b")
	seen("it is written")
	rewrite(t, path+".new", "c")
	must(t, os.Rename(path+".new", path))
	seen("another takes its place")
	rewrite(t, path, "d")
	seen("that one is written")
	must(t, os.Remove(path))
	seen("it goes")
}

func TestWatch_DirectoryReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "policies")
	seen := watching(t, path)
	must(t, os.Mkdir(path, 0o700))
	seen("it comes")
	rewrite(t, filepath.Join(path, "a.yaml"), "a")
	seen("a file comes")
	must(t, os.Rename(path, path+".old"))
	must(t, os.Mkdir(path, 0o700))
	seen("another takes its place")
	rewrite(t, filepath.Join(path, "b.yaml"), "b")
	seen("a file comes into that one")
}

// The kubelet writes a ConfigMap's files into a new directory and points a link to it.
func TestWatch_MountedConfigMap(t *testing.T) {
	for name, path := range map[string]string{"directory": "", "file": "policy.yaml"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "mount")
			must(t, os.Mkdir(dir, 0o700))
			for _, version := range []string{"..1", "..2", "..3"} {
				must(t, os.Mkdir(filepath.Join(dir, version), 0o700))
				rewrite(t, filepath.Join(dir, version, "policy.yaml"), version)
			}
			must(t, os.Symlink(filepath.Join(mountLink, "policy.yaml"), filepath.Join(dir, "policy.yaml")))
			turn := func(version string) {
				must(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
				must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, mountLink)))
			}
			seen := watching(t, filepath.Join(dir, path))
			for _, version := range []string{"..1", "..2", "..3"} {
				turn(version)
				seen("the link is turned to " + version)
			}
		})
	}
}

func TestConcerns(t *testing.T) {
	for name, concerned := range map[string]bool{
		"/etc/p.yaml": true, "/etc/..data": true, "/etc/q.yaml": false, "/etc/.p.yaml.swp": false, "/etc/p.yaml/inside": true, "/other/p.yaml": false,
	} {
		if got := concerns(name, "/etc/p.yaml"); got != concerned {
			t.Errorf("%s: got %t, want %t", name, got, concerned)
		}
	}
}
