// SPDX-License-Identifier: Apache-2.0

package records

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// The golden file is what the first release that wrote status notes writes. Every later release must read it.
func TestStatusNote_Format1(t *testing.T) {
	notes, err := OpenStatusNotes(store.Disk{}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	note := &StatusNote{Format: StatusFormat, Claim: Claim{Namespace: "team", Name: "trainer-gpu-x7k2p", UID: uidA}}
	if err := notes.Write(note); err != nil {
		t.Fatal(err)
	}
	checkFormat(t, "status-note-format1.json", filepath.Join(notes.Dir(), string(uidA)+".json"))
	got, err := notes.Read(uidA)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(note, got); diff != "" {
		t.Errorf("note (-want +got):\n%s", diff)
	}
}
