// SPDX-License-Identifier: Apache-2.0

package driversession

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/sim"
)

const device = "gpu-0000-1b-00-0"

// bed is a node whose driver comes and goes.
type bed struct {
	t    *testing.T
	dir  string
	node *sim.Node
}

func newBed(t *testing.T) *bed {
	t.Helper()
	dir := t.TempDir()
	node, err := sim.Create(filepath.Join(dir, "node"), "hgx-h100", sim.WithoutDeviceNodes())
	if err != nil {
		t.Fatal(err)
	}
	return &bed{t, dir, node}
}

func (b *bed) path() string { return filepath.Join(b.dir, "session.json") }

func (b *bed) open(boot string) *Sessions {
	b.t.Helper()
	s, err := Open(store.Disk{}, b.path(), boot, os.DirFS(filepath.Join(b.node.Root(), "sys")), os.DirFS(filepath.Join(b.node.Root(), "proc")))
	if err != nil {
		b.t.Fatal(err)
	}
	if err := s.Begin([]string{device}); err != nil {
		b.t.Fatal(err)
	}
	return s
}

func TestSessionsEnd(t *testing.T) {
	link := func(b *bed) string { return filepath.Join(b.node.Root(), "sys/bus/pci/devices/0000:1b:00.0/driver") }
	tests := map[string]struct {
		do     func(b *bed, s *Sessions) error
		boot   string
		other  bool // session
		broken bool
	}{
		"restart of the plugin": {do: func(*bed, *Sessions) error { return nil }},
		"reboot":                {do: func(*bed, *Sessions) error { return nil }, boot: "boot-2", other: true},
		"release":               {do: func(_ *bed, s *Sessions) error { return s.End() }, other: true, broken: true},
		"module loaded anew": {do: func(b *bed, _ *Sessions) error {
			return errors.Join(b.node.Driver().Unload(), b.node.Driver().Load())
		}, other: true, broken: true},
		"module loaded anew twice": {do: func(b *bed, _ *Sessions) error {
			return errors.Join(b.node.Driver().Unload(), b.node.Driver().Load(), b.node.Driver().Unload(), b.node.Driver().Load())
		}, other: true, broken: true},
		"GPU bound anew": {do: func(b *bed, _ *Sessions) error {
			return errors.Join(os.Symlink("elsewhere", link(b)+".new"), os.Rename(link(b)+".new", link(b)))
		}, other: true, broken: true},
		"file spoiled":              {do: func(b *bed, _ *Sessions) error { return os.WriteFile(b.path(), []byte("{"), 0o600) }, other: true},
		"GPU reset behind our back": {do: func(b *bed, _ *Sessions) error { return b.node.Hardware().ForceRemake(0) }},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			before := b.open("boot-1")
			was := before.Of(device)
			if !before.Unbroken(device) {
				t.Error("the first session counts as broken")
			}
			if err := test.do(b, before); err != nil {
				t.Fatal(err)
			}
			boot := "boot-1"
			if test.boot != "" {
				boot = test.boot
			}
			for range 2 { // it stays so
				after := b.open(boot)
				if got := after.Of(device); (got != was) != test.other {
					t.Errorf("session %q, and before %q: want another %t", got, was, test.other)
				}
				if after.Unbroken(device) == test.broken {
					t.Errorf("unbroken: %t, want %t", !test.broken, test.broken)
				}
			}
		})
	}
}

// What the first release wrote is read.
func TestOpen_FirstFormat(t *testing.T) {
	b := newBed(t)
	if err := os.WriteFile(b.path(), []byte(`{"format":1,"bootID":"boot","release":"R","first":{"gpu-0000-1b-00-0":"R.1.2"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := b.open("boot")
	if s.file.Release != "R" || s.file.First["gpu-0000-1b-00-0"] != "R.1.2" {
		t.Errorf("got %+v, want what the file says", s.file)
	}
}

func TestEnd_FullDisk(t *testing.T) {
	b := newBed(t)
	was := b.open("boot").Of(device)
	full := &fullDisk{Disk: store.Disk{}}
	s, err := Open(full, b.path(), "boot", os.DirFS(filepath.Join(b.node.Root(), "sys")), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.End(); err != nil {
		t.Fatal(err)
	}
	if got := b.open("boot").Of(device); got == was {
		t.Errorf("session %q goes on, though it was ended", got)
	}
	full.stuck = true
	if err := s.End(); err == nil {
		t.Error("End said success, and nothing of it is durable")
	}
}

// A full disk is tried again, and what it lacks is written then.
func TestBegin_FullDisk(t *testing.T) {
	b := newBed(t)
	b.open("boot")
	disk := &fullDisk{Disk: store.Disk{}}
	s, err := Open(disk, b.path(), "boot", os.DirFS(filepath.Join(b.node.Root(), "sys")), nil)
	if err != nil {
		t.Fatal(err)
	}
	const added = "gpu-0000-99-00-0"
	if err := s.Begin([]string{added}); err == nil {
		t.Fatal("Begin said success, and nothing of it is durable")
	}
	disk.free = true
	if err := s.Begin([]string{added}); err != nil || !b.open("boot").Unbroken(added) {
		t.Errorf("got %v, and the disk knows the session: %t; want it known", err, b.open("boot").Unbroken(added))
	}
}

// fullDisk cannot be written until it is free.
type fullDisk struct {
	store.Disk
	stuck, free bool
}

func (d *fullDisk) WriteFile(path string, data []byte) error {
	if d.free {
		return d.Disk.WriteFile(path, data)
	}
	return errors.New("no space")
}

func (d *fullDisk) Remove(path string) error {
	if d.stuck {
		return errors.New("read-only")
	}
	return d.Disk.Remove(path)
}

func TestWitness(t *testing.T) {
	b := newBed(t)
	if err := b.node.Init(); err != nil {
		t.Fatal(err)
	}
	d := b.node.Device(0)
	_, modeErr := d.MIG().SetMIGMode(true)
	gi, err := d.MIG().CreateGPUInstance(19)
	minor, minorErr := d.MinorNumber()
	if err := errors.Join(modeErr, err, minorErr); err != nil {
		t.Fatal(err)
	}
	s := b.open("boot")
	was := s.Witness(minor, gi.ID())
	if was == "" || b.open("boot").Witness(minor, gi.ID()) != was {
		t.Errorf("witness %q: want one that stays", was)
	}
	if err := b.node.Hardware().ForceRemake(0); err != nil {
		t.Fatal(err)
	}
	if got := s.Witness(minor, gi.ID()); got == was {
		t.Errorf("witness %q is that of the instance before", got)
	}
	if got := s.Witness(minor, 14); got != "" {
		t.Errorf("witness %q of no instance", got)
	}
}

// slowDisk takes until it is released.
type slowDisk struct {
	store.Disk
	writes, release chan struct{}
}

func (d *slowDisk) WriteFile(path string, data []byte) error {
	close(d.writes)
	<-d.release
	return d.Disk.WriteFile(path, data)
}

// While the file is written, which a disk that hangs makes long, sessions can be asked for.
func TestSessionsBegin_DiskHangs(t *testing.T) {
	b := newBed(t)
	s := b.open("boot")
	slow := &slowDisk{writes: make(chan struct{}), release: make(chan struct{})}
	s.stored = store.NewFile(slow, b.path(), format)
	begun := make(chan error)
	go func() { begun <- s.Begin([]string{"gpu-0000-1c-00-0"}) }()
	<-slow.writes
	if s.Of(device) == "" || !s.Unbroken(device) {
		t.Error("the session is not the first one")
	}
	close(slow.release)
	if err := <-begun; err != nil {
		t.Fatal(err)
	}
}
