// SPDX-License-Identifier: Apache-2.0

package names

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// tick is longer than one of the file system's clock, which here is the kernel's: what happens within one has one time.
const tick = 50 * time.Millisecond

// What is remembered must be what a search finds, whatever happens to the directories.
func TestFinder_Find(t *testing.T) {
	plugins := t.TempDir()
	state := func(name string) error {
		return errors.Join(os.MkdirAll(filepath.Join(plugins, name, Claims), 0o700), os.MkdirAll(filepath.Join(plugins, name, Locks), 0o700))
	}
	steps := map[string][]func() error{
		"created at once": {func() error { return state("gpu.nvidia.com") }},
		"created in steps": {
			func() error { return os.MkdirAll(filepath.Join(plugins, "gpu.example.com"), 0o700) },
			func() error { return os.Mkdir(filepath.Join(plugins, "gpu.example.com", Claims), 0o700) },
			func() error { return os.Mkdir(filepath.Join(plugins, "gpu.example.com", Locks), 0o700) },
		},
		"removed": {
			func() error { return state("old.example.com") },
			func() error { return os.RemoveAll(filepath.Join(plugins, "old.example.com", Locks)) },
			func() error { return os.RemoveAll(filepath.Join(plugins, "old.example.com")) },
		},
		"own": {func() error { return state("gpu.cleave.dev") }},
	}
	for _, name := range []string{"created at once", "created in steps", "removed", "own"} {
		t.Run(name, func(t *testing.T) {
			later := func() time.Time { return time.Now().Add(time.Minute) }
			finder := Finder{PluginsDir: plugins, Own: "gpu.cleave.dev", Now: later}
			for i, step := range steps[name] {
				<-time.After(tick)
				if _, err := finder.Find(); err != nil || finder.stamps == nil {
					t.Fatalf("before step %d: %v, stamps %v", i, err, finder.stamps)
				}
				<-time.After(tick)
				if err := step(); err != nil {
					t.Fatal(err)
				}
				want, err := Find(plugins, "gpu.cleave.dev")
				if err != nil {
					t.Fatal(err)
				}
				got, err := finder.Find()
				if diff := cmp.Diff(want, got); diff != "" || err != nil {
					t.Errorf("after step %d, %v (-want +got):\n%s", i, err, diff)
				}
			}
		})
	}
}

// What has just changed may change again without another time of change.
func TestFinder_JustChanged(t *testing.T) {
	finder := Finder{PluginsDir: t.TempDir()}
	if _, err := finder.Find(); err != nil || finder.stamps != nil {
		t.Errorf("got %v and stamps %v, want none", err, finder.stamps)
	}
}
