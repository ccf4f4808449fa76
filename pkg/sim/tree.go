// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// tree is an in-memory file system of files, symbolic links and their directories. It is read-only once built.
type tree struct {
	files map[string]treeFile
	dirs  map[string][]string // names in a directory, sorted; "." is the top
}

// treeFile is a file, or a link if target is set.
type treeFile struct {
	data   []byte
	target string
}

var (
	_ fs.ReadLinkFS = (*tree)(nil)
	_ fs.ReadDirFS  = (*tree)(nil)
	_ fs.ReadFileFS = (*tree)(nil)
)

// newTree creates a file system of files.
func newTree(files map[string]treeFile) *tree {
	t := &tree{files: files, dirs: map[string][]string{".": nil}}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for name != "." {
			dir := path.Dir(name)
			if !slices.Contains(t.dirs[dir], path.Base(name)) {
				t.dirs[dir] = append(t.dirs[dir], path.Base(name))
			}
			name = dir
		}
	}
	for _, names := range t.dirs {
		slices.Sort(names)
	}
	return t
}

// resolve follows links in name, the last part included if last is set.
func (t *tree) resolve(op, name string, last bool) (string, error) {
	if !fs.ValidPath(name) {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	const maxLinks = 40
	done, rest := ".", strings.Split(name, "/")
	for links := 0; len(rest) > 0; {
		step := path.Join(done, rest[0])
		rest = rest[1:]
		f, isFile := t.files[step]
		if isFile && f.target != "" && (last || len(rest) > 0) {
			if links++; links > maxLinks {
				return "", &fs.PathError{Op: op, Path: name, Err: fmt.Errorf("too many links")}
			}
			full := path.Join(path.Dir(step), f.target)
			if !fs.ValidPath(full) {
				return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
			}
			done, rest = ".", append(strings.Split(full, "/"), rest...)
			continue
		}
		if _, isDir := t.dirs[step]; !isDir && (!isFile || len(rest) > 0) {
			return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
		}
		done = step
	}
	return done, nil
}

// info describes a resolved name.
func (t *tree) info(name string) treeInfo {
	f, isFile := t.files[name]
	switch {
	case !isFile:
		return treeInfo{name: path.Base(name), mode: fs.ModeDir | 0o755}
	case f.target != "":
		return treeInfo{name: path.Base(name), mode: fs.ModeSymlink | 0o777, size: int64(len(f.target))}
	default:
		return treeInfo{name: path.Base(name), mode: 0o444, size: int64(len(f.data))}
	}
}

// Open opens a file or a directory, following links.
func (t *tree) Open(name string) (fs.File, error) {
	at, err := t.resolve("open", name, true)
	if err != nil {
		return nil, err
	}
	info := t.info(at)
	info.name = path.Base(name)
	if info.IsDir() {
		return &openDir{tree: t, at: at, info: info}, nil
	}
	return &openFile{Reader: bytes.NewReader(t.files[at].data), info: info}, nil
}

// ReadFile reads a file, following links.
func (t *tree) ReadFile(name string) ([]byte, error) {
	at, err := t.resolve("read", name, true)
	if err != nil {
		return nil, err
	}
	f, ok := t.files[at]
	if !ok {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fs.ErrInvalid}
	}
	return bytes.Clone(f.data), nil
}

// ReadDir lists a directory, following links.
func (t *tree) ReadDir(name string) ([]fs.DirEntry, error) {
	at, err := t.resolve("readdir", name, true)
	if err != nil {
		return nil, err
	}
	if !t.info(at).IsDir() {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrInvalid}
	}
	var entries []fs.DirEntry
	for _, child := range t.dirs[at] {
		entries = append(entries, fs.FileInfoToDirEntry(t.info(path.Join(at, child))))
	}
	return entries, nil
}

// ReadLink returns where a link points.
func (t *tree) ReadLink(name string) (string, error) {
	at, err := t.resolve("readlink", name, false)
	if err != nil {
		return "", err
	}
	if target := t.files[at].target; target != "" {
		return target, nil
	}
	return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
}

// Lstat describes a name without following a link at its end.
func (t *tree) Lstat(name string) (fs.FileInfo, error) {
	at, err := t.resolve("lstat", name, false)
	if err != nil {
		return nil, err
	}
	return t.info(at), nil
}

// treeInfo is the description of an entry.
type treeInfo struct {
	name string
	mode fs.FileMode
	size int64
}

func (i treeInfo) Name() string       { return i.name }
func (i treeInfo) Size() int64        { return i.size }
func (i treeInfo) Mode() fs.FileMode  { return i.mode }
func (i treeInfo) ModTime() time.Time { return time.Time{} }
func (i treeInfo) IsDir() bool        { return i.mode.IsDir() }
func (i treeInfo) Sys() any           { return nil }

type openFile struct {
	*bytes.Reader
	info treeInfo
}

func (f *openFile) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *openFile) Close() error               { return nil }

// openDir is an open directory; next is how many entries were read.
type openDir struct {
	tree *tree
	at   string
	info treeInfo
	next int
}

func (d *openDir) Stat() (fs.FileInfo, error) { return d.info, nil }
func (d *openDir) Close() error               { return nil }
func (d *openDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.at, Err: fs.ErrInvalid}
}

// ReadDir reads the next n entries, or all if n is not positive.
func (d *openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	entries, err := d.tree.ReadDir(d.at)
	if err != nil {
		return nil, err
	}
	entries = entries[d.next:]
	if n > 0 {
		if len(entries) == 0 {
			return nil, io.EOF
		}
		entries = entries[:min(n, len(entries))]
	}
	d.next += len(entries)
	return entries, nil
}
