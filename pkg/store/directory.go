// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

const (
	suffix     = ".json"
	corruptDir = "corrupt"
)

// Directory holds the documents of one kind, by name, each in a file of its own.
type Directory[K ~string, T any] struct {
	disk   FileSystem
	dir    string
	format *Format[T]
}

// At is a directory as it is; nothing is made or deleted.
func At[K ~string, T any](disk FileSystem, dir string, format *Format[T]) *Directory[K, T] {
	return &Directory[K, T]{disk: disk, dir: filepath.Clean(dir), format: format}
}

// Open makes the directory if need be, checks that it can be listed, and deletes what interrupted writes have left in it.
func Open[K ~string, T any](disk FileSystem, dir string, format *Format[T]) (*Directory[K, T], error) {
	d := At[K](disk, dir, format)
	if err := disk.MkdirAll(filepath.Join(d.dir, corruptDir), 0o700); err != nil {
		return nil, fmt.Errorf("create the directory for %ss: %w", format.Kind, err)
	}
	if _, err := d.Names(); err != nil {
		return nil, err
	}
	if err := disk.Sweep(d.dir); err != nil {
		return nil, fmt.Errorf("sweep the directory of %ss: %w", format.Kind, err)
	}
	return d, nil
}

// Dir is its path.
func (d *Directory[K, T]) Dir() string { return d.dir }

// Names lists the documents, sorted. Other files in the directory are passed over.
func (d *Directory[K, T]) Names() ([]K, error) {
	files, err := d.disk.ReadDir(d.dir)
	if err != nil {
		return nil, fmt.Errorf("list the directory of %ss: %w", d.format.Kind, err)
	}
	var names []K
	for _, file := range files {
		if name, ok := strings.CutSuffix(file, suffix); ok && d.format.Names(name) {
			names = append(names, K(name))
		}
	}
	return names, nil
}

// Read returns a document: nil if there is none, a CorruptError if the file is none.
func (d *Directory[K, T]) Read(name K) (*T, error) {
	path, err := d.path(name)
	if err != nil {
		return nil, err
	}
	return d.format.read(d.disk, path, string(name))
}

// List reads all documents; a missing directory has none. Files that cannot be read as documents are CorruptErrors.
func (d *Directory[K, T]) List() (all []*T, corrupt []error, err error) {
	names, err := d.Names()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		doc, err := d.Read(name)
		bad := (*CorruptError)(nil)
		switch {
		case errors.As(err, &bad):
			corrupt = append(corrupt, err)
		case err != nil:
			return nil, nil, err
		case doc != nil: // else it has just been removed
			all = append(all, doc)
		}
	}
	return all, corrupt, nil
}

// Write makes a document durable, in place of the earlier one of its name.
func (d *Directory[K, T]) Write(doc *T) error {
	path, err := d.path(K(d.format.Name(doc)))
	if err != nil {
		return err
	}
	return d.format.write(d.disk, path, doc)
}

// Remove deletes a document. A missing one is no error.
func (d *Directory[K, T]) Remove(name K) error {
	path, err := d.path(name)
	if err != nil {
		return err
	}
	if err := d.disk.Remove(path); err != nil {
		return fmt.Errorf("remove the %s %s: %w", d.format.Kind, path, err)
	}
	return nil
}

// SetAside moves a corrupt file out of the way, where an engineer can read it, and returns its new path.
func (d *Directory[K, T]) SetAside(name K) (string, error) {
	path, err := d.path(name)
	if err != nil {
		return "", err
	}
	aside := filepath.Join(d.dir, corruptDir, filepath.Base(path))
	if err := d.disk.MkdirAll(filepath.Dir(aside), 0o700); err != nil {
		return "", fmt.Errorf("set aside the %s %s: %w", d.format.Kind, path, err)
	}
	if err := d.disk.Rename(path, aside); err != nil {
		return "", fmt.Errorf("set aside the %s %s: %w", d.format.Kind, path, err)
	}
	return aside, nil
}

// path keeps anything but a plain name out of paths.
func (d *Directory[K, T]) path(name K) (string, error) {
	if !d.format.Names(string(name)) || filepath.Base(string(name)) != string(name) {
		return "", fmt.Errorf("%q cannot name a %s", string(name), d.format.Kind)
	}
	return filepath.Join(d.dir, string(name)+suffix), nil
}
