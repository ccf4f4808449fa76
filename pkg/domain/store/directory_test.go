// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDirectory_WriteReadRemove(t *testing.T) {
	one := openNotes(t)
	two := openIn(t, Disk{}, one.Dir()) // another process
	if got, err := one.Read("a"); got != nil || err != nil {
		t.Errorf("no document: got %v, %v, want nil, nil", got, err)
	}
	want := sample("a")
	for range 2 { // the second replaces the first
		must(t, one.Write(want))
		for _, d := range []*Directory[string, note]{one, two} {
			got, err := d.Read("a")
			must(t, err)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("document (-want +got):\n%s", diff)
			}
		}
		if diff := cmp.Diff([]string{"a.json"}, listAll(t, one.Dir())); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}
		want.Items = want.Items[:1]
	}
	for i := range 2 {
		if err := two.Remove("a"); err != nil {
			t.Errorf("Remove %d: %v", i, err)
		}
	}
	if got, err := one.Read("a"); got != nil || err != nil {
		t.Errorf("after Remove by the other: got %v, %v, want nil, nil", got, err)
	}
	if got := listAll(t, one.Dir()); len(got) != 0 {
		t.Errorf("left behind: %v", got)
	}
}

// Every one of these must be a CorruptError: callers set such a file aside and continue, any other error stops them.
func TestDirectoryRead_Corrupt(t *testing.T) {
	limit := int(noteFormat().Limit)
	valid := `{"format":1,"name":"a"}`
	for name, data := range map[string]string{
		"empty": "", "truncated": valid[:len(valid)-1], "not JSON": "hello", "number": "1", "zeros": "\x00\x00\x00",
		"no format": `{"name":"a"}`, "format 2": `{"format":2,"name":"a"}`, "another document": `{"format":1,"name":"b"}`,
		"check fails": `{"format":1}`, "one byte over": valid + strings.Repeat(" ", limit-len(valid)+1), "directory": "/",
	} {
		t.Run(name, func(t *testing.T) {
			d := openNotes(t)
			path := filepath.Join(d.Dir(), "a.json")
			err := os.WriteFile(path, []byte(data), 0o600)
			if data == "/" {
				err = errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
			}
			must(t, err)
			got, err := d.Read("a")
			corrupt := (*CorruptError)(nil)
			if !errors.As(err, &corrupt) {
				t.Fatalf("got %v, %v, want a CorruptError", got, err)
			}
			if corrupt.Name != "a" || corrupt.Path != path || !strings.Contains(err.Error(), "note "+path) {
				t.Errorf("got %v, want kind, name and path of the file", err)
			}
			if all, bad, err := d.List(); len(all) > 0 || len(bad) != 1 || err != nil {
				t.Errorf("List: got %v, %v, %v, want the CorruptError", all, bad, err)
			}
			aside, err := d.SetAside("a")
			must(t, err)
			if _, err := os.Stat(aside); err != nil {
				t.Error(err)
			}
			if got, err := d.Read("a"); got != nil || err != nil {
				t.Errorf("after SetAside: got %v, %v, want nil, nil", got, err)
			}
			if names, err := d.Names(); len(names) > 0 || err != nil {
				t.Errorf("after SetAside: got %v, %v, want none", names, err)
			}
			if names, err := d.Aside(); !slices.Equal(names, []string{"a"}) || err != nil {
				t.Errorf("after SetAside: got %v, %v, want it aside", names, err)
			}
			must(t, d.Write(sample("a")))
			if names, err := d.Aside(); len(names) > 0 || err != nil {
				t.Errorf("after it was written again: got %v, %v, want none aside", names, err)
			}
		})
	}
}

func TestDirectorySetAside_KeepsTheBytes(t *testing.T) {
	d := At[string](Disk{}, t.TempDir(), noteFormat()) // without the directory for corrupt files
	must(t, os.WriteFile(filepath.Join(d.Dir(), "a.json"), []byte("broken"), 0o600))
	aside, err := d.SetAside("a")
	must(t, err)
	if data, err := os.ReadFile(aside); err != nil || string(data) != "broken" {
		t.Errorf("at %s: got %q, %v, want the broken bytes", aside, data, err)
	}
}

func TestDirectoryRead_LargestSize(t *testing.T) {
	d := openNotes(t)
	valid := `{"format":1,"name":"a"}`
	data := valid + strings.Repeat(" ", int(noteFormat().Limit)-len(valid))
	must(t, os.WriteFile(filepath.Join(d.Dir(), "a.json"), []byte(data), 0o600))
	if _, err := d.Read("a"); err != nil {
		t.Error(err)
	}
}

func TestDirectory_NamesThatAreNoPlainNames(t *testing.T) {
	d := openNotes(t)
	must(t, os.WriteFile(filepath.Join(filepath.Dir(d.Dir()), "victim.json"), []byte("precious"), 0o600))
	for _, name := range []string{
		"", ".", "..", "../victim", "/etc/passwd", "a/b", "a\x00b", "-a", "a.b", "corrupt/a", "a\n", strings.Repeat("a", 65),
	} {
		_, errRead := d.Read(name)
		_, errAside := d.SetAside(name)
		if d.Write(sample(name)) == nil || d.Remove(name) == nil || errRead == nil || errAside == nil {
			t.Errorf("%q passed for a name", name)
		}
	}
	if diff := cmp.Diff([]string{"notes", "victim.json"}, readDir(t, filepath.Dir(d.Dir()))); diff != "" {
		t.Errorf("files outside the directory (-want +got):\n%s", diff)
	}
}

func TestDirectoryNames_OtherFiles(t *testing.T) {
	d := openNotes(t)
	for _, name := range []string{"b.json", "a.json", ".c.json.1234", "d.txt", "notes", "e.json.tmp", "x y.json", ".json"} {
		must(t, os.WriteFile(filepath.Join(d.Dir(), name), nil, 0o600))
	}
	got, err := d.Names()
	must(t, err)
	if diff := cmp.Diff([]string{"a", "b"}, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestDirectoryList_MissingDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	all, corrupt, err := At[string](Disk{}, dir, noteFormat()).List()
	if all != nil || corrupt != nil || err != nil {
		t.Errorf("got %v, %v, %v, want nothing", all, corrupt, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("List created the directory: %v", err)
	}
}

// A kill between the temporary file and its rename leaves the temporary file. Nothing else ever removes it.
func TestOpen_SweepsTemporaryFiles(t *testing.T) {
	d := openNotes(t)
	left := filepath.Join(d.Dir(), ".a.json.123456")
	must(t, os.WriteFile(left, []byte(`{"format":1,"na`), 0o600))
	openIn(t, Disk{}, d.Dir())
	if diff := cmp.Diff([]string{".a.json.123456"}, listAll(t, d.Dir())); diff != "" { // another process may be writing it
		t.Errorf("a new file (-want +got):\n%s", diff)
	}
	old := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(left, old, old))
	openIn(t, Disk{}, d.Dir())
	if diff := cmp.Diff([]string{}, listAll(t, d.Dir())); diff != "" {
		t.Errorf("an old file (-want +got):\n%s", diff)
	}
}

func TestDirectory_DiskErrors(t *testing.T) {
	type notes = Directory[string, note]
	open := func(d *notes) error { _, err := Open[string](d.disk, d.dir, d.format); return err }
	for name, tt := range map[string]struct {
		op   string
		call func(d *notes) error
		want string
	}{
		"Write":           {"WriteFile", func(d *notes) error { return d.Write(sample("a")) }, "write the note"},
		"Read":            {"ReadFile", func(d *notes) error { _, err := d.Read("a"); return err }, "read the note"},
		"Remove":          {"Remove", func(d *notes) error { return d.Remove("a") }, "remove the note"},
		"Names":           {"ReadDir", func(d *notes) error { _, err := d.Names(); return err }, "list the directory of notes"},
		"List":            {"ReadDir", func(d *notes) error { _, _, err := d.List(); return err }, "list the directory of notes"},
		"SetAside":        {"Rename", func(d *notes) error { _, err := d.SetAside("a"); return err }, "set aside the note"},
		"SetAside, mkdir": {"MkdirAll", func(d *notes) error { _, err := d.SetAside("a"); return err }, "set aside the note"},
		"Open, mkdir":     {"MkdirAll", open, "create the directory"},
		"Open, list":      {"ReadDir", open, "list the directory"},
		"Open, sweep":     {"Sweep", open, "sweep the directory"},
	} {
		t.Run(name, func(t *testing.T) {
			d := openNotes(t)
			d.disk = faultyDisk{op: tt.op, err: &fs.PathError{Op: "op", Path: "p", Err: syscall.ENOSPC}}
			err := tt.call(d)
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("got %v, want it to wrap ENOSPC", err)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q does not say %q", err, tt.want)
			}
			if corrupt := (*CorruptError)(nil); errors.As(err, &corrupt) {
				t.Errorf("an error of the disk counts as a corrupt document: %v", err)
			}
			if files := listAll(t, d.Dir()); len(files) != 0 {
				t.Errorf("left behind: %v", files)
			}
		})
	}
	t.Run("List, read", func(t *testing.T) {
		d := openNotes(t)
		must(t, d.Write(sample("a")))
		d.disk = faultyDisk{op: "ReadFile", err: syscall.EIO}
		if all, corrupt, err := d.List(); len(all)+len(corrupt) > 0 || !errors.Is(err, syscall.EIO) {
			t.Errorf("got %v, %v, %v, want EIO", all, corrupt, err)
		}
	})
}
