// SPDX-License-Identifier: Apache-2.0

package records

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Goes with every format that a release has written: what it wrote is read, and written again without loss.
func TestDecode_EachFormat(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "format*.json"))
	if err != nil || len(files) < 3 {
		t.Fatalf("got %v, %v, want the files of each format", files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Decode(data)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		s := openStore(t)
		if err := s.Write(r.Clone()); err != nil {
			t.Fatal(err)
		}
		again, err := os.ReadFile(filepath.Join(s.Dir(), string(r.Claim.UID)+".json"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tree(t, data), tree(t, again)); diff != "" {
			t.Errorf("%s (-read +written):\n%s", file, diff)
		}
	}
}

func tree(t *testing.T, data []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// A release before this one, or this one alongside the next, gives a claim's partition back: what the next wrote stays.
func TestStoreWrite_FieldsOfALaterRelease(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "format2-later.json"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	changed := r.Clone()
	changed.State = Releasing
	s := openStore(t)
	if err := s.Write(changed); err != nil {
		t.Fatal(err)
	}
	got, err := s.Read(r.Claim.UID)
	if err != nil {
		t.Fatal(err)
	}
	want := tree(t, data).(map[string]any)
	want["state"] = "releasing"
	again, err := recordFormat.Encode(got)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(any(want), tree(t, again)); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	// A device that is gone takes its fields with it.
	changed.Devices = changed.Devices[:1]
	changed.Devices[0].Partition = nil
	if err := s.Write(changed); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(r.Claim.UID); err != nil {
		t.Error(err)
	}
}

func TestDecode_Invalid(t *testing.T) {
	device := `{"request":"r","pool":"p","device":"d","gpu":"g","uuid":"u"}`
	claim := `"driver":"d","claim":{"namespace":"n","name":"c","uid":"u1"}`
	tests := map[string]struct{ data, want string }{
		"empty file":           {"", "decode"},
		"only zeros":           {"\x00\x00\x00\x00", "decode"},
		"truncated":            {`{"format":1,` + claim + `,"devices":[{"req`, "decode"},
		"two records":          {`{"format":1}{"format":1}`, "decode"},
		"array":                {`[]`, "decode"},
		"null":                 {`null`, "format 0"},
		"no format":            {`{` + claim + `,"devices":[` + device + `]}`, "format 0"},
		"format 2":             {`{"format":2,` + claim + `,"devices":[` + device + `]}`, "format 2"},
		"negative format":      {`{"format":-1,` + claim + `,"devices":[` + device + `]}`, "format -1"},
		"no devices":           {`{"format":1,` + claim + `,"devices":[]}`, "no devices"},
		"null devices":         {`{"format":1,` + claim + `,"devices":null}`, "no devices"},
		"no claim":             {`{"format":1,"devices":[` + device + `]}`, "claim UID"},
		"no driver":            {`{"format":1,"claim":{"uid":"u1"},"devices":[` + device + `]}`, "not a DNS name"},
		"driver with path":     {`{"format":1,"driver":"../x","claim":{"uid":"u1"},"devices":[` + device + `]}`, "not a DNS name"},
		"UID with path":        {`{"format":1,"claim":{"uid":"../x"},"devices":[` + device + `]}`, "claim UID"},
		"device without name":  {`{"format":1,` + claim + `,"devices":[` + device + `,{"gpu":"g","uuid":"u"}]}`, "devices[1]"},
		"device without GPU":   {`{"format":1,` + claim + `,"devices":[{"device":"d","uuid":"u"}]}`, "devices[0]"},
		"device without uuid":  {`{"format":1,` + claim + `,"devices":[{"device":"d","gpu":"g"}]}`, "devices[0]"},
		"devices as an object": {`{"format":1,` + claim + `,"devices":{}}`, "decode"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Decode([]byte(tt.data))
			if err == nil {
				t.Fatalf("got %v, want an error", got)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q does not say %q", err, tt.want)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	golden, err := os.ReadFile(filepath.Join("testdata", "format1.json"))
	if err != nil {
		f.Fatal(err)
	}
	shares, err := os.ReadFile(filepath.Join("testdata", "format1-shares.json"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(shares)
	f.Add(golden)
	f.Add(golden[:len(golden)/2])
	f.Add([]byte(`{"format":1,"claim":{"uid":"u"},"devices":[null]}`))
	f.Add([]byte(`null`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Decode(data)
		if err != nil {
			return
		}
		s := openStoreIn(t, dir)
		if err := s.Write(r); err != nil {
			t.Fatalf("what decodes cannot be written: %v", err)
		}
		again, err := s.Read(r.Claim.UID)
		if err != nil {
			t.Fatalf("what decodes cannot be read back: %v", err)
		}
		if diff := cmp.Diff(r, again); diff != "" {
			t.Errorf("round trip (-want +got):\n%s", diff)
		}
	})
}
