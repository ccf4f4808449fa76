// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func copiedFormat() *Format[note] {
	format := noteFormat()
	format.Copied = true
	return format
}

func noteOf(name, text string) *note { return &note{Format: 1, Name: name, Items: []item{{text}}} }

func textOf(n *note) string {
	if n == nil {
		return ""
	}
	return n.Items[0].Text
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestDirectory_Copies(t *testing.T) {
	format := copiedFormat()
	write := func(path, text string) func(string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600) }
	}
	remove := func(path string) func(string) error {
		return func(dir string) error { return os.RemoveAll(filepath.Join(dir, path)) }
	}
	for name, tt := range map[string]struct {
		happens []func(dir string) error
		want    string // of the document; empty for none
		copied  bool
		corrupt bool
	}{
		"intact":                   {want: "text"},
		"corrupt":                  {happens: []func(string) error{write("a.json", "?")}, want: "text", copied: true},
		"emptied":                  {happens: []func(string) error{write("a.json", "")}, want: "text", copied: true},
		"the copy is corrupt":      {happens: []func(string) error{write("copies/a.json", "?")}, want: "text"},
		"both are corrupt":         {happens: []func(string) error{write("a.json", "?"), write("copies/a.json", "?")}, corrupt: true},
		"corrupt, without a copy":  {happens: []func(string) error{write("a.json", "?"), remove("copies/a.json")}, corrupt: true},
		"removed by hand":          {happens: []func(string) error{remove("a.json")}},
		"the copies were deleted":  {happens: []func(string) error{remove("copies")}, want: "text"},
		"copy of another document": {happens: []func(string) error{write("a.json", "?"), write("copies/a.json", `{"format":1,"name":"b"}`)}, corrupt: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			d, err := Open[string](Disk{}, dir, format)
			must(t, err)
			must(t, d.Write(noteOf("a", "text")))
			for _, happens := range tt.happens {
				must(t, happens(dir))
			}
			copied := 0
			d.OnCopy(func(string, error) { copied++ })
			doc, err := d.Read("a")
			got := textOf(doc)
			if corrupt := errors.As(err, new(*CorruptError)); got != tt.want || corrupt != tt.corrupt || (copied > 0) != tt.copied || err != nil && !corrupt {
				t.Errorf("got %q, %v, copy used %d times", got, err, copied)
			}
			must(t, d.Write(noteOf("a", "next"))) // in any case
			must(t, os.WriteFile(filepath.Join(dir, "a.json"), nil, 0o600))
			if doc, err := d.Read("a"); err != nil || textOf(doc) != "next" {
				t.Errorf("after a write: %v, %v", doc, err)
			}
			must(t, d.Remove("a"))
			if left, _ := filepath.Glob(filepath.Join(dir, "*", "a.json")); len(left) > 0 {
				t.Errorf("left after Remove: %v", left)
			}
		})
	}
}

// What a write that was cut short, or somebody's hand, has left: a copy alone is no document.
func TestOpen_CopyAlone(t *testing.T) {
	format := copiedFormat()
	dir := t.TempDir()
	d, err := Open[string](Disk{}, dir, format)
	must(t, err)
	must(t, d.Write(noteOf("stays", "x")))
	must(t, d.Write(noteOf("alone", "x")))
	must(t, os.Remove(filepath.Join(dir, "alone.json")))
	if doc, err := d.Read("alone"); doc != nil || err != nil {
		t.Errorf("got %v, %v, want none", doc, err)
	}
	_, err = Open[string](Disk{}, dir, format)
	must(t, err)
	left, err := Disk{}.ReadDir(filepath.Join(dir, copiesDir))
	if diff := cmp.Diff([]string{"stays.json"}, left); diff != "" || err != nil {
		t.Errorf("copies %v (-want +got):\n%s", err, diff)
	}
}

// A document is not changed where its copy cannot be written, and one whose copy cannot be read is not called corrupt.
func TestDirectory_CopyFails(t *testing.T) {
	format := copiedFormat()
	dir := t.TempDir()
	d, err := Open[string](Disk{}, dir, format)
	must(t, err)
	must(t, d.Write(noteOf("a", "before")))
	failing := At[string](faultyDisk{op: "WriteFile", err: os.ErrPermission}, dir, format)
	if err := failing.Write(noteOf("a", "after")); !errors.Is(err, os.ErrPermission) {
		t.Errorf("Write = %v", err)
	}
	if doc, err := d.Read("a"); err != nil || textOf(doc) != "before" {
		t.Errorf("got %v, %v, want it as before", doc, err)
	}
}
