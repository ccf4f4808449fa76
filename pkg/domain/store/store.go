// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	kjson "sigs.k8s.io/json"
)

// Format describes the documents of one kind.
type Format[T any] struct {
	// Kind names a document in errors, such as "claim record".
	Kind string
	// Limit bounds a document in bytes.
	Limit int64
	// Version is what this release writes. It reads every version up to it, and later ones that say so by ReadableFrom: what
	// only adds fields can be read by earlier releases, which keep the fields.
	Version int
	// VersionOf is the version of a document, and the earliest one whose releases can read it; 0 for that version itself.
	VersionOf func(*T) (version, readableFrom int)
	// Unknown is where a document keeps the fields of later releases. Without it they are lost when it is written again.
	Unknown func(*T) *any
	// Check reports why a document cannot be used; nil if every one can.
	Check func(*T) error
	// Describe names a document that cannot be written, in errors; nil for its path.
	Describe func(*T) string
	// Name is the name that a document has in its directory, and Names what such names look like. A File needs neither.
	Name  func(*T) string
	Names func(string) bool
	// Durable documents outlive a power cut, also right after they were written. Others outlive this process, however it ends.
	Durable bool
	// Copied documents of a directory have a copy there, in a file of its own, which is read where that of the document is corrupt.
	Copied bool
}

// Decode reads a document of this or an earlier version, or of a later one that this release can read.
func (f *Format[T]) Decode(data []byte) (*T, error) {
	doc := new(T)
	// By their exact names: a field of another spelling is of a later release, and kept as such.
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, doc); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	if f.Unknown != nil {
		unknown, err := unknownFields(data, doc)
		if err != nil {
			return nil, fmt.Errorf("decode: %w", err)
		}
		*f.Unknown(doc) = unknown
	}
	if version, from := f.VersionOf(doc); !readable(version, from, f.Version) {
		return nil, fmt.Errorf("format %d (readable from %d) is not one of 1 to %d", version, from, f.Version)
	}
	if f.Check == nil {
		return doc, nil
	}
	if err := f.Check(doc); err != nil {
		return nil, err
	}
	return doc, nil
}

// readable reports whether a release that writes one version can read a document.
func readable(version, from, own int) bool {
	return version >= 1 && from >= 0 && from <= version && (version <= own || from >= 1 && from <= own)
}

// Encode is what Decode reads.
func (f *Format[T]) Encode(doc *T) ([]byte, error) {
	if f.Unknown == nil {
		return json.Marshal(doc)
	}
	return withUnknown(doc, *f.Unknown(doc))
}

// CorruptError is a file that cannot be read as a document.
type CorruptError struct {
	Kind string
	// Name in its directory.
	Name string
	Path string
	Err  error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("read the %s %s: %v", e.Kind, e.Path, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }

// read returns the document at a path: nil if there is none, a CorruptError if the file is none.
func (f *Format[T]) read(disk FileSystem, path, name string) (*T, error) {
	data, err := disk.ReadFile(path, f.Limit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no document is an ordinary answer, not a failure
	}
	if err != nil && !errors.Is(err, ErrTooLong) && !errors.Is(err, ErrNotAFile) {
		return nil, fmt.Errorf("read the %s %s: %w", f.Kind, path, err)
	}
	var doc *T
	if err == nil {
		doc, err = f.Decode(data)
	}
	if err == nil && f.Name != nil && f.Name(doc) != name {
		err = fmt.Errorf("it is of %s", f.Name(doc))
	}
	if err != nil {
		return nil, &CorruptError{Kind: f.Kind, Name: name, Path: path, Err: err}
	}
	return doc, nil
}

// write writes a document in place of an earlier one.
func (f *Format[T]) write(disk FileSystem, path string, doc *T) error {
	data, err := f.Encode(doc)
	switch {
	case err != nil:
	case f.Durable:
		err = disk.WriteDurable(path, data)
	default:
		err = disk.WriteFile(path, data)
	}
	return f.describe("write", path, doc, err)
}

// writeCopy writes a copy of a document, into a directory that it makes if need be.
func (f *Format[T]) writeCopy(disk FileSystem, path string, doc *T) error {
	data, err := f.Encode(doc)
	if err == nil {
		err = disk.WriteFile(path, data)
	}
	if errors.Is(err, fs.ErrNotExist) { // somebody deleted it
		if err = disk.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			err = disk.WriteFile(path, data)
		}
	}
	return f.describe("copy", path, doc, err)
}

// describe names a document that an error is about.
func (f *Format[T]) describe(verb, path string, doc *T, err error) error {
	switch {
	case err == nil:
		return nil
	case f.Describe != nil:
		return fmt.Errorf("%s the %s of %s: %w", verb, f.Kind, f.Describe(doc), err)
	default:
		return fmt.Errorf("%s the %s %s: %w", verb, f.Kind, path, err)
	}
}

// File is a single document.
type File[T any] struct {
	disk   FileSystem
	path   string
	format *Format[T]
}

// NewFile touches nothing; the file's directory must exist when it is written.
func NewFile[T any](disk FileSystem, path string, format *Format[T]) *File[T] {
	return &File[T]{disk: disk, path: path, format: format}
}

// Path of the file.
func (f *File[T]) Path() string { return f.path }

// Read returns the document: nil if there is none, a CorruptError if the file is none.
func (f *File[T]) Read() (*T, error) {
	return f.format.read(f.disk, f.path, strings.TrimSuffix(filepath.Base(f.path), suffix))
}

// Write writes the document.
func (f *File[T]) Write(doc *T) error { return f.format.write(f.disk, f.path, doc) }

// Remove deletes the document. A missing one is no error.
func (f *File[T]) Remove() error { return f.disk.Remove(f.path) }
