// SPDX-License-Identifier: Apache-2.0

package records

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/golden"
)

// The golden files are what release 0.1 and the first one with shares write. Every later release must read them.
func TestFormat1(t *testing.T) {
	for name, r := range map[string]*Record{"format1.json": sample(uidA), "format1-shares.json": sharing(uidA)} {
		s := openStore(t)
		if err := s.Write(r); err != nil {
			t.Fatalf("Write: %v", err)
		}
		checkFormat(t, name, filepath.Join(s.Dir(), string(uidA)+".json"))
		got, err := s.Read(uidA)
		if err != nil {
			t.Fatalf("Read: %v", err)
		}
		if diff := cmp.Diff(r, got); diff != "" {
			t.Errorf("%s: record (-want +got):\n%s", name, diff)
		}
	}
}

// checkFormat compares a file that was written with a golden one, which must never change once released.
func checkFormat(t *testing.T, name, file string) {
	t.Helper()
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, filepath.Join("testdata", name), string(written))
}

// Each of these must be a CorruptError: callers set such a file aside and continue, any other error stops them.
func TestStoreRead_Corrupt(t *testing.T) {
	valid, err := os.ReadFile(filepath.Join("testdata", "format1.json"))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string][]byte{
		"empty":                {},
		"truncated":            valid[:len(valid)-1],
		"of another claim":     bytes.Replace(valid, []byte(uidA), []byte("ffffffff-0001-4a8e-9a57-6b1b0a7a5a01"), 1),
		"format 2":             bytes.Replace(valid, []byte(`"format":1`), []byte(`"format":2`), 1),
		"too large":            append(bytes.Clone(valid), bytes.Repeat([]byte(" "), MaxSize)...),
		"full of zeros":        make([]byte, len(valid)),
		"not JSON":             []byte("hello"),
		"one byte over":        append(bytes.Clone(valid), bytes.Repeat([]byte(" "), MaxSize+1-len(valid))...),
		"nothing but a number": []byte("1"),
	}
	for name, data := range tests {
		t.Run(name, func(t *testing.T) {
			s := openStore(t)
			path := filepath.Join(s.Dir(), string(uidA)+".json")
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := s.Read(uidA)
			corrupt := (*store.CorruptError)(nil)
			if !errors.As(err, &corrupt) {
				t.Fatalf("got %v, %v, want a CorruptError", got, err)
			}
			if corrupt.Name != string(uidA) || corrupt.Path != path {
				t.Errorf("got name %s and path %s, want %s and %s", corrupt.Name, corrupt.Path, uidA, path)
			}
			if !strings.Contains(err.Error(), path) {
				t.Errorf("error %q does not name the file", err)
			}
		})
	}
}

// A claim may have 32 results, with names as long as the API takes them.
func TestStore_LargestClaim(t *testing.T) {
	s := openStore(t)
	r := sample(uidA)
	long := strings.Repeat("x", 253)
	r.Claim.Namespace, r.Claim.Name = long[:63], long
	device := r.Devices[0]
	device.Request, device.Pool = long[:63]+"/"+long[:63], long
	device.CDIDeviceIDs = []string{long + "/gpu=" + device.Device, long + "/claim=" + string(uidA)}
	r.Devices = nil
	for range 32 {
		r.Devices = append(r.Devices, device)
	}
	if err := s.Write(r); err != nil {
		t.Fatalf("Write: %v", err)
	}
	if _, err := s.Read(uidA); err != nil {
		t.Errorf("Read: %v", err)
	}
}

func TestRecordGPUs(t *testing.T) {
	r := &Record{Devices: []Device{{GPU: "c"}, {GPU: "a"}, {GPU: "c"}, {GPU: "b"}}}
	if diff := cmp.Diff([]string{"a", "b", "c"}, r.GPUs()); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
}

func TestStore_UIDsThatAreNoPlainNames(t *testing.T) {
	s := openStore(t)
	for _, uid := range []types.UID{"", "..", "../x", "a/b", "a\x00b", "-a", "a.b", "a\n", types.UID(strings.Repeat("a", 65))} {
		if err := s.Write(sample(uid)); err == nil {
			t.Errorf("%q passed for a UID", uid)
		}
	}
}
