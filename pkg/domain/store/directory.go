// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

const (
	suffix     = ".json"
	corruptDir = "corrupt"
	copiesDir  = "copies"
)

// Directory holds the documents of one kind, by name, each in its own file. A document that is Copied has a second file, which is
// written before the first and removed after it: without the first, the document does not exist, and the second is left over from an
// interrupted operation.
type Directory[K ~string, T any] struct {
	disk   FileSystem
	dir    string
	format *Format[T]
	// copied is called for each read of a copy; nil for nobody.
	copied func(name K, cause error)
}

// At returns a directory as it is; nothing is created or deleted.
func At[K ~string, T any](disk FileSystem, dir string, format *Format[T]) *Directory[K, T] {
	return &Directory[K, T]{disk: disk, dir: filepath.Clean(dir), format: format}
}

// Open creates the directory if necessary, checks that it can be listed, and deletes leftovers of interrupted writes.
func Open[K ~string, T any](disk FileSystem, dir string, format *Format[T]) (*Directory[K, T], error) {
	d := At[K](disk, dir, format)
	if err := disk.MkdirAll(filepath.Join(d.dir, corruptDir), 0o700); err != nil {
		return nil, fmt.Errorf("create the directory for %ss: %w", format.Kind, err)
	}
	if _, err := d.Names(); err != nil {
		return nil, err
	}
	for _, dir := range d.dirs() {
		if err := disk.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("create the directory for %ss: %w", format.Kind, err)
		}
		if err := disk.Sweep(dir); err != nil {
			return nil, fmt.Errorf("sweep the directory of %ss: %w", format.Kind, err)
		}
	}
	return d, d.sweepCopies()
}

// sweepCopies deletes the copies of documents that do not exist.
func (d *Directory[K, T]) sweepCopies() error {
	if !d.format.Copied {
		return nil
	}
	copies, err := At[K](d.disk, filepath.Join(d.dir, copiesDir), d.format).Names()
	if err != nil {
		return err
	}
	names, err := d.Names() // listed after the copies, which are written first
	if err != nil {
		return err
	}
	for _, name := range copies {
		if slices.Contains(names, name) {
			continue
		}
		if path, err := d.path(name); err != nil {
			return err
		} else if err := d.disk.Remove(d.copy(path)); err != nil {
			return fmt.Errorf("remove the copy of a %s: %w", d.format.Kind, err)
		}
	}
	return nil
}

// dirs returns the directories that files are written in.
func (d *Directory[K, T]) dirs() []string {
	if !d.format.Copied {
		return []string{d.dir}
	}
	return []string{d.dir, filepath.Join(d.dir, copiesDir)}
}

// OnCopy registers a function that is called whenever a document cannot be read and its copy is read instead, with the reason. Call it
// before the first read.
func (d *Directory[K, T]) OnCopy(copied func(name K, cause error)) { d.copied = copied }

// Dir returns the directory's path.
func (d *Directory[K, T]) Dir() string { return d.dir }

// Names lists the documents, sorted. Other files in the directory are ignored.
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

// Read returns a document: nil if there is none, a CorruptError if the file is corrupt and no copy is readable. The copy also serves
// where the file cannot be read.
func (d *Directory[K, T]) Read(name K) (*T, error) {
	path, err := d.path(name)
	if err != nil {
		return nil, err
	}
	doc, err := d.format.read(d.disk, path, string(name))
	if !d.format.Copied || err == nil {
		return doc, err
	}
	copied, copyErr := d.format.read(d.disk, d.copy(path), string(name))
	switch {
	case copied != nil:
		if d.copied != nil {
			d.copied(name, err)
		}
		return copied, nil
	case errors.As(err, new(*CorruptError)) && copyErr != nil && !errors.As(copyErr, new(*CorruptError)):
		return nil, copyErr // unknown whether the document exists
	default:
		return nil, err
	}
}

// copy returns the path of a document's copy.
func (d *Directory[K, T]) copy(path string) string {
	return filepath.Join(d.dir, copiesDir, filepath.Base(path))
}

// List reads all documents; a missing directory has none. Corrupt files are returned as CorruptErrors.
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
		case doc != nil: // otherwise it has just been removed
			all = append(all, doc)
		}
	}
	return all, corrupt, nil
}

// Write writes a document, replacing the earlier one of its name.
func (d *Directory[K, T]) Write(doc *T) error {
	path, err := d.path(K(d.format.Name(doc)))
	if err != nil {
		return err
	}
	if d.format.Copied {
		if err := d.format.writeCopy(d.disk, d.copy(path), doc); err != nil {
			return err
		}
	}
	return d.format.write(d.disk, path, doc)
}

// Remove deletes a document. A missing one is not an error.
func (d *Directory[K, T]) Remove(name K) error {
	path, err := d.path(name)
	if err != nil {
		return err
	}
	return d.remove(path)
}

// remove deletes a document and, after it, its copy.
func (d *Directory[K, T]) remove(path string) error {
	paths := []string{path}
	if d.format.Copied {
		paths = append(paths, d.copy(path))
	}
	for _, path := range paths {
		if err := d.disk.Remove(path); err != nil {
			return fmt.Errorf("remove the %s %s: %w", d.format.Kind, path, err)
		}
	}
	return nil
}

// SetAside moves a corrupt file out of the way for later inspection, and returns its new path.
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
	return aside, d.remove(path) // its copy is corrupt as well
}

// Aside lists the documents that were set aside and have not been written again, sorted.
func (d *Directory[K, T]) Aside() ([]K, error) {
	aside, err := At[K](d.disk, filepath.Join(d.dir, corruptDir), d.format).Names()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := d.Names()
	return slices.DeleteFunc(aside, func(name K) bool { return slices.Contains(names, name) }), err
}

// path rejects names that are not plain file names.
func (d *Directory[K, T]) path(name K) (string, error) {
	if !d.format.Names(string(name)) || filepath.Base(string(name)) != string(name) {
		return "", fmt.Errorf("%q cannot name a %s", string(name), d.format.Kind)
	}
	return filepath.Join(d.dir, string(name)+suffix), nil
}
