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
	// Version is the version this release writes. It reads every version up to it, and later ones whose ReadableFrom allows it: earlier
	// releases can read a version that only adds fields, and preserve those fields.
	Version int
	// VersionOf returns the version of a document, and the earliest one whose releases can read it; 0 for that version itself.
	VersionOf func(*T) (version, readableFrom int)
	// Unknown locates the fields of later releases in a document. Without it they are lost when it is written again.
	Unknown func(*T) *any
	// Check reports why a document is invalid; nil if all are valid.
	Check func(*T) error
	// Describe identifies a document in write errors; nil for its path.
	Describe func(*T) string
	// Name returns the name of a document in its directory, and Names matches such names. A File needs neither.
	Name  func(*T) string
	Names func(string) bool
	// Durable documents survive a power loss, even right after they were written. Others only survive this process, however it ends.
	Durable bool
	// Copied documents of a directory have a copy in a separate file, which is read when the document itself is corrupt.
	Copied bool
}

// Decode reads a document of this or an earlier version, or of a later one that this release can read.
func (f *Format[T]) Decode(data []byte) (*T, error) {
	doc := new(T)
	// Case-sensitive: a field spelled differently belongs to a later release, and is preserved as such.
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

// readable reports whether a release that writes version own can read a document.
func readable(version, from, own int) bool {
	return version >= 1 && from >= 0 && from <= version && (version <= own || from >= 1 && from <= own)
}

// Encode is the inverse of Decode.
func (f *Format[T]) Encode(doc *T) ([]byte, error) {
	if f.Unknown == nil {
		return json.Marshal(doc)
	}
	return withUnknown(doc, *f.Unknown(doc))
}

// CorruptError reports a file that cannot be decoded as a document.
type CorruptError struct {
	Kind string
	// Name of the document in its directory.
	Name string
	Path string
	Err  error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("read the %s %s: %v", e.Kind, e.Path, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }

// read returns the document at a path: nil if there is none, a CorruptError if it cannot be decoded.
func (f *Format[T]) read(disk FileSystem, path, name string) (*T, error) {
	data, err := disk.ReadFile(path, f.Limit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // a missing document is not a failure
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

// write writes a document, replacing an earlier one.
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

// writeCopy writes a copy of a document, creating its directory if necessary.
func (f *Format[T]) writeCopy(disk FileSystem, path string, doc *T) error {
	data, err := f.Encode(doc)
	if err == nil {
		err = disk.WriteFile(path, data)
	}
	if errors.Is(err, fs.ErrNotExist) { // the directory was deleted
		if err = disk.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			err = disk.WriteFile(path, data)
		}
	}
	return f.describe("copy", path, doc, err)
}

// describe adds the operation and the document to an error.
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

// NewFile does not touch the disk; the file's directory must exist when it is written.
func NewFile[T any](disk FileSystem, path string, format *Format[T]) *File[T] {
	return &File[T]{disk: disk, path: path, format: format}
}

// Path returns the file's path.
func (f *File[T]) Path() string { return f.path }

// Read returns the document: nil if there is none, a CorruptError if it cannot be decoded.
func (f *File[T]) Read() (*T, error) {
	return f.format.read(f.disk, f.path, strings.TrimSuffix(filepath.Base(f.path), suffix))
}

// Write writes the document.
func (f *File[T]) Write(doc *T) error { return f.format.write(f.disk, f.path, doc) }

// Remove deletes the document. A missing one is not an error.
func (f *File[T]) Remove() error { return f.disk.Remove(f.path) }
