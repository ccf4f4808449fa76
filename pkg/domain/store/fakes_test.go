// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"io/fs"
	"path/filepath"
	"regexp"
	"testing"
)

// note is a document.
type note struct {
	Format       int    `json:"format"`
	ReadableFrom int    `json:"readableFrom,omitempty"`
	Name         string `json:"name"`
	Items        []item `json:"items,omitempty"`
	Unknown      any    `json:"-"`
}

type item struct {
	Text string `json:"text"`
}

func noteFormat() *Format[note] {
	return &Format[note]{
		Kind: "note", Limit: 1 << 10, Version: 1,
		VersionOf: func(n *note) (int, int) { return n.Format, n.ReadableFrom },
		Unknown:   func(n *note) *any { return &n.Unknown },
		Check: func(n *note) error {
			if n.Name == "" {
				return errors.New("it has no name")
			}
			return nil
		},
		Name:  func(n *note) string { return n.Name },
		Names: regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`).MatchString,
	}
}

func sample(name string) *note { return &note{Format: 1, Name: name, Items: []item{{"x"}, {"y"}}} }

// openNotes opens a directory of the real disk.
func openNotes(t *testing.T) *Directory[string, note] {
	t.Helper()
	return openIn(t, Disk{}, filepath.Join(t.TempDir(), "notes"))
}

func openIn(t *testing.T, disk FileSystem, dir string) *Directory[string, note] {
	t.Helper()
	d, err := Open[string](disk, dir, noteFormat())
	must(t, err)
	return d
}

// faultyDisk is the real disk, with an error in one operation.
type faultyDisk struct {
	Disk
	op  string
	err error
}

func (d faultyDisk) at(op string) error {
	if op == d.op {
		return d.err
	}
	return nil
}

func (d faultyDisk) MkdirAll(path string, mode fs.FileMode) error {
	return errors.Join(d.at("MkdirAll"), d.Disk.MkdirAll(path, mode))
}

func (d faultyDisk) ReadDir(path string) ([]string, error) {
	if err := d.at("ReadDir"); err != nil {
		return nil, err
	}
	return d.Disk.ReadDir(path)
}

func (d faultyDisk) ReadFile(path string, limit int64) ([]byte, error) {
	if err := d.at("ReadFile"); err != nil {
		return nil, err
	}
	return d.Disk.ReadFile(path, limit)
}

func (d faultyDisk) WriteFile(path string, data []byte) error {
	if err := d.at("WriteFile"); err != nil {
		return err
	}
	return d.Disk.WriteFile(path, data)
}

func (d faultyDisk) WriteDurable(path string, data []byte) error {
	if err := d.at("WriteDurable"); err != nil {
		return err
	}
	return d.Disk.WriteDurable(path, data)
}

func (d faultyDisk) Rename(from, to string) error {
	if err := d.at("Rename"); err != nil {
		return err
	}
	return d.Disk.Rename(from, to)
}

func (d faultyDisk) Remove(path string) error {
	if err := d.at("Remove"); err != nil {
		return err
	}
	return d.Disk.Remove(path)
}

func (d faultyDisk) Sweep(dir string) error { return errors.Join(d.at("Sweep"), d.Disk.Sweep(dir)) }

// listAll lists every file under a directory, relative to it, in order.
func listAll(t *testing.T, dir string) []string {
	t.Helper()
	files := []string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			files = append(files, rel)
		}
		return err
	})
	if err != nil {
		t.Fatalf("list %s: %v", dir, err)
	}
	return files
}

func readDir(t *testing.T, dir string) []string {
	t.Helper()
	names, err := Disk{}.ReadDir(dir)
	must(t, err)
	return names
}
