package records

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDecodePassesOverFieldsOfLaterReleases(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "format1.json"))
	if err != nil {
		t.Fatal(err)
	}
	data = bytes.Replace(data, []byte(`{"format":1,`), []byte(`{"format":1,"later":{"x":[1]},`), 1)
	data = bytes.Replace(data, []byte(`{"request":`), []byte(`{"shares":4,"request":`), 1)
	got, err := Decode(data)
	if err != nil {
		t.Fatalf("Decode: %v", err)
	}
	if diff := cmp.Diff(sample(uidA), got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
}

func TestDecodeRefusesWhatIsNoRecord(t *testing.T) {
	device := `{"request":"r","pool":"p","device":"d","gpu":"g","uuid":"u"}`
	claim := `"claim":{"namespace":"n","name":"c","uid":"u1"}`
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
		s := openStoreIn(t, Disk{}, dir)
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
