// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// patience bounds a wait for what must come.
const patience = 30 * time.Second

// watching starts to watch a path, and returns a function that waits until a change is told.
func watching(t *testing.T, path string) (told func(what string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	changes, done := make(chan struct{}, 100), make(chan error, 1)
	go func() { done <- Watch(ctx, path, func() { changes <- struct{}{} }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	// The watch is there once a change of the watched folder is told: before, changes may be missed.
	probe := time.NewTicker(2 * settle)
	defer probe.Stop()
	for begun := false; !begun; {
		write(t, filepath.Join(filepath.Dir(path), linkOfMount), "")
		select {
		case <-changes:
			begun = true
		case <-probe.C:
		}
	}
	if err := os.Remove(filepath.Join(filepath.Dir(path), linkOfMount)); err != nil {
		t.Fatal(err)
	}
	told = func(what string) {
		t.Helper()
		select {
		case <-changes:
		case <-time.After(patience):
			t.Fatalf("%s: nothing is told", what)
		}
	}
	told("the probe goes")
	return told
}

func write(t *testing.T, path, data string) {
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

func TestAFileIsWatchedThoughItIsReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "policy.yaml")
	told := watching(t, path)
	write(t, path, "a")
	told("it comes")
	write(t, path, "b")
	told("it is written")
	write(t, path+".new", "c")
	must(t, os.Rename(path+".new", path))
	told("another takes its place")
	write(t, path, "d")
	told("that one is written")
	must(t, os.Remove(path))
	told("it goes")
}

func TestAFolderIsWatchedThoughItIsReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "policies")
	told := watching(t, path)
	must(t, os.Mkdir(path, 0o700))
	told("it comes")
	write(t, filepath.Join(path, "a.yaml"), "a")
	told("a file comes")
	must(t, os.Rename(path, path+".old"))
	must(t, os.Mkdir(path, 0o700))
	told("another takes its place")
	write(t, filepath.Join(path, "b.yaml"), "b")
	told("a file comes into that one")
}

// The kubelet writes a ConfigMap's files into a new folder and turns a link to it.
func TestAMountedConfigMapIsWatched(t *testing.T) {
	for name, path := range map[string]string{"folder": "", "file": "policy.yaml"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "mount")
			must(t, os.Mkdir(dir, 0o700))
			for _, version := range []string{"..1", "..2", "..3"} {
				must(t, os.Mkdir(filepath.Join(dir, version), 0o700))
				write(t, filepath.Join(dir, version, "policy.yaml"), version)
			}
			must(t, os.Symlink(filepath.Join(linkOfMount, "policy.yaml"), filepath.Join(dir, "policy.yaml")))
			turn := func(version string) {
				must(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
				must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, linkOfMount)))
			}
			told := watching(t, filepath.Join(dir, path))
			for _, version := range []string{"..1", "..2", "..3"} {
				turn(version)
				told("the link is turned to " + version)
			}
		})
	}
}

func TestNothingIsToldOfOtherFiles(t *testing.T) {
	for name, concerned := range map[string]bool{
		"/etc/p.yaml": true, "/etc/..data": true, "/etc/q.yaml": false, "/etc/.p.yaml.swp": false, "/etc/p.yaml/inside": true, "/other/p.yaml": false,
	} {
		if got := concerns(name, "/etc/p.yaml"); got != concerned {
			t.Errorf("%s: got %t, want %t", name, got, concerned)
		}
	}
}
