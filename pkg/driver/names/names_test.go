// SPDX-License-Identifier: Apache-2.0

package names

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{"gpu.nvidia.com", "csi.example.com", "half.example.com/cleave.lock"} {
		if err := os.MkdirAll(filepath.Join(dir, path), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{
		"gpu.cleave.dev/cleave.lock", "gpu.example.com/cleave.lock", "own.example.com/cleave.lock", "_cleave/cleave.lock",
		"gpu.nvidia.com/checkpoint.json", "gpu.nvidia.com/dra.sock", "csi.example.com/claims", "file",
	} {
		path := filepath.Join(dir, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(dir, "gpu.cleave.dev"), filepath.Join(dir, "link.example.com")); err != nil {
		t.Fatal(err)
	}
	found, err := Find(dir, "own.example.com")
	if want := []string{"gpu.cleave.dev", "gpu.example.com"}; err != nil || !slices.Equal(found, want) {
		t.Errorf("got %v, %v, want %v", found, err, want)
	}
	if found, err := Find(filepath.Join(dir, "none"), "own"); err != nil || len(found) > 0 {
		t.Errorf("of no directory: %v, %v", found, err)
	}
}

func TestRuns(t *testing.T) {
	dir := t.TempDir()
	check := func(want bool) {
		t.Helper()
		if got, err := Runs(dir); got != want || err != nil {
			t.Errorf("got %t, %v, want %t", got, err, want)
		}
	}
	check(false)
	file, err := os.Create(filepath.Join(dir, Running))
	if err != nil {
		t.Fatal(err)
	}
	check(false)
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	check(true)
	check(true) // looking takes nothing away
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	check(false)
}

func TestDecide(t *testing.T) {
	for name, test := range map[string]struct {
		observed Observed
		want     Plan
	}{
		"its plugin still runs and publishes":    {Observed{Runs: true, Published: true, Records: 3}, Plan{Hold: true}},
		"its plugin is gone, its slices are not": {Observed{Published: true, Records: 3}, Plan{Hold: true}},
		"its slices are gone":                    {Observed{Records: 3}, Plan{Hold: true, Serve: true}},
		"its claims are known":                   {Observed{Listed: true, Records: 3}, Plan{Serve: true}},
		"allocated and not prepared":             {Observed{Listed: true, Allocated: 1, Idle: time.Hour}, Plan{Serve: true}},
		"nothing is left":                        {Observed{Listed: true}, Plan{Serve: true}},
		"nothing is left for a while":            {Observed{Listed: true, Idle: Linger}, Plan{Retire: true}},
		"not asked yet":                          {Observed{Idle: Linger}, Plan{Hold: true, Serve: true}},
		"its plugin runs and publishes nothing":  {Observed{Runs: true, Listed: true, Idle: Linger}, Plan{}},
		"it starts again and publishes":          {Observed{Runs: true, Published: true, Listed: true, Records: 1}, Plan{Hold: true}},
		"the name is another driver's by now":    {Observed{Taken: true, Listed: true, Records: 1}, Plan{}},
		"its plugin runs, claims not listed yet": {Observed{Runs: true}, Plan{Hold: true}},
	} {
		if got := Decide(test.observed); got != test.want {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
	}
}

// Whatever is observed, nothing is published over what the scheduler may allocate under the other name, nobody serves a
// name that its own plugin or another driver serves, and nothing of a claim is thrown away.
func TestDecide_Always(t *testing.T) {
	for bits := range 1 << 7 {
		is := func(i int) bool { return bits>>i&1 == 1 }
		o := Observed{is(0), is(1), is(2), is(3), bits >> 4 & 1, bits >> 5 & 1, 0}
		if is(6) {
			o.Idle = Linger
		}
		p := Decide(o)
		switch {
		case (o.Published || !o.Listed) && !p.Hold:
			t.Errorf("%+v: published", o)
		case p.Serve && (o.Runs || o.Taken || o.Published):
			t.Errorf("%+v: served", o)
		case p.Retire && (o.Runs || o.Published || o.Records+o.Allocated > 0 || !o.Listed || o.Idle < Linger):
			t.Errorf("%+v: retired", o)
		}
	}
}
