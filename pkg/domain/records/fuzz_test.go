// SPDX-License-Identifier: Apache-2.0

package records

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// fuzzFormat checks that what is read of a file can be written and read again, with the same name.
func fuzzFormat[T any](t *testing.T, format *store.Format[T], data []byte) {
	t.Helper()
	doc, err := format.Decode(data)
	if err != nil {
		return
	}
	if !format.Names(format.Name(doc)) {
		t.Errorf("%q is read, and %q cannot name a file", data, format.Name(doc))
	}
	again, err := format.Encode(doc)
	if err != nil {
		t.Fatalf("encode what was decoded: %v", err)
	}
	got, err := format.Decode(again)
	if diff := cmp.Diff(doc, got, cmpopts.EquateEmpty()); err != nil || diff != "" { // an empty list is left out
		t.Errorf("got %v, %v, want what was encoded: %s", got, err, diff)
	}
}

func FuzzDecodeModeChange(f *testing.F) {
	f.Add([]byte(modeChangeFile))
	f.Add([]byte(`{"format":9,"readableFrom":1,"gpu":"gpu-0000-07-00-0","uuid":"GPU-a","x":[null]}`))
	f.Fuzz(func(t *testing.T, data []byte) { fuzzFormat(t, modeFormat, data) })
}

func FuzzDecodeStatusNote(f *testing.F) {
	f.Add([]byte(`{"format":1,"claim":{"uid":"1b2c","namespace":"team-a","name":"train"}}`))
	f.Add([]byte(`{"format":1,"claim":{"uid":"../x","namespace":"..","name":"/"}}`))
	f.Fuzz(func(t *testing.T, data []byte) { fuzzFormat(t, statusFormat, data) })
}
