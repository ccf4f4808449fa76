// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestReadable(t *testing.T) {
	for _, tt := range []struct {
		version, from, own int
		want               bool
	}{
		{1, 0, 1, true}, {1, 1, 1, true}, {1, 0, 2, true}, {2, 2, 2, true}, {2, 1, 1, true}, {9, 1, 1, true}, {9, 3, 4, true},
		{2, 0, 1, false}, {2, 2, 1, false}, {0, 0, 1, false}, {-1, 0, 1, false}, {1, 2, 1, false}, {2, -1, 1, false}, {0, 1, 1, false},
	} {
		if got := readable(tt.version, tt.from, tt.own); got != tt.want {
			t.Errorf("format %d, readable from %d, by a release of format %d: got %t, want %t", tt.version, tt.from, tt.own, got, tt.want)
		}
	}
}

func TestFormat_UnknownFields(t *testing.T) {
	const later = `{"format":2,"readableFrom":1,"name":"a","items":[{"text":"x","size":[1,{"k":1.10}]},{"text":"y"}],"more":{"b":null}}`
	f := noteFormat()
	doc, err := f.Decode([]byte(later))
	must(t, err)
	encoded := func(want string) {
		t.Helper()
		data, err := f.Encode(doc)
		must(t, err)
		if diff := cmp.Diff(tree(t, want), tree(t, string(data))); diff != "" {
			t.Errorf("document (-want +got):\n%s", diff)
		}
	}
	encoded(later)
	doc.Items = doc.Items[:1] // what is gone takes its fields with it
	encoded(`{"format":2,"readableFrom":1,"name":"a","items":[{"text":"x"}],"more":{"b":null}}`)
	f.Unknown = nil
	encoded(`{"format":2,"readableFrom":1,"name":"a","items":[{"text":"x"}]}`)
}

// The field of a later release is its own, though its name differs from one that is known in capitals alone.
func TestFormat_FieldsInCapitals(t *testing.T) {
	f := noteFormat()
	doc, err := f.Decode([]byte(`{"format":1,"name":"a","Name":"b","ITEMS":[{"text":"x"}]}`))
	must(t, err)
	want := &note{Format: 1, Name: "a", Unknown: map[string]any{"Name": "b", "ITEMS": []any{map[string]any{"text": "x"}}}}
	if diff := cmp.Diff(want, doc); diff != "" {
		t.Errorf("document (-want +got):\n%s", diff)
	}
}

func tree(t *testing.T, data string) any {
	t.Helper()
	v, err := decodeTree([]byte(data))
	must(t, err)
	return v
}

func FuzzFormat(f *testing.F) {
	f.Add([]byte(`{"format":1,"name":"a","items":[{"text":"x"}]}`))
	f.Add([]byte(`{"format":2,"readableFrom":1,"name":"a","items":null,"x":{"y":[1,{}]}}`))
	f.Add([]byte(`null`))
	f.Add([]byte(`{"format":1,"name":"a","items":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		format := noteFormat()
		doc, err := format.Decode(data)
		if err != nil {
			return
		}
		again, err := format.Encode(doc)
		if err != nil {
			t.Fatalf("encode what was decoded: %v", err)
		}
		if got, err := format.Decode(again); err != nil || !cmp.Equal(doc, got, cmpopts.EquateEmpty()) {
			t.Errorf("got %v, %v, want what was encoded: %s", got, err, cmp.Diff(doc, got))
		}
	})
}

func TestFile(t *testing.T) {
	f := NewFile(Disk{}, filepath.Join(t.TempDir(), "note.json"), &Format[note]{
		Kind: "note", Limit: 1 << 10, Version: 1, VersionOf: func(n *note) (int, int) { return n.Format, 0 }, Durable: true,
	})
	if got, err := f.Read(); got != nil || err != nil {
		t.Errorf("no file: got %v, %v, want nil, nil", got, err)
	}
	must(t, f.Write(sample("any")))
	got, err := f.Read()
	if diff := cmp.Diff(sample("any"), got); diff != "" || err != nil {
		t.Errorf("%v, document (-want +got):\n%s", err, diff)
	}
	f.disk = faultyDisk{op: "WriteDurable", err: syscall.ENOSPC}
	if err := f.Write(sample("b")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v, want ENOSPC", err)
	}
	f.disk = Disk{}
	must(t, os.WriteFile(f.Path(), []byte(`{"format":7}`), 0o600))
	if corrupt := (*CorruptError)(nil); true {
		if _, err := f.Read(); !errors.As(err, &corrupt) || corrupt.Path != f.Path() {
			t.Errorf("got %v, want a CorruptError", err)
		}
	}
	for range 2 {
		if err := f.Remove(); err != nil {
			t.Error(err)
		}
	}
}
