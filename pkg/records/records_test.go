// SPDX-License-Identifier: Apache-2.0

package records

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

var update = flag.Bool("update", false, "write golden files anew; format1.json must never change once released")

func TestWriteThenReadGivesTheSameRecord(t *testing.T) {
	s := openStore(t)
	want := sample(uidA)
	if err := s.Write(want); err != nil {
		t.Fatalf("Write: %v", err)
	}
	got, err := s.Read(uidA)
	if err != nil {
		t.Fatalf("Read: %v", err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{string(uidA) + ".json"}, listAll(t, s.Dir())); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestWriteReplacesTheEarlierRecord(t *testing.T) {
	s := openStore(t)
	want := sample(uidA)
	if err := s.Write(want); err != nil {
		t.Fatalf("Write: %v", err)
	}
	want.Devices = want.Devices[:1]
	if err := s.Write(want); err != nil {
		t.Fatalf("second Write: %v", err)
	}
	got, err := s.Read(uidA)
	if err != nil {
		t.Fatalf("Read: %v", err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
}

// The golden file is what release 0.1 writes. Every later release must read it.
func TestFormat1IsWrittenAndReadByteForByte(t *testing.T) {
	golden := filepath.Join("testdata", "format1.json")
	s := openStore(t)
	if err := s.Write(sample(uidA)); err != nil {
		t.Fatalf("Write: %v", err)
	}
	written, err := os.ReadFile(filepath.Join(s.Dir(), string(uidA)+".json"))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(golden, written, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(written)); diff != "" {
		t.Errorf("file (-want +got):\n%s", diff)
	}
	got, err := Decode(want)
	if err != nil {
		t.Fatalf("Decode: %v", err)
	}
	if diff := cmp.Diff(sample(uidA), got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
}

func TestReadOfAClaimWithoutRecordIsNil(t *testing.T) {
	got, err := openStore(t).Read(uidA)
	if err != nil || got != nil {
		t.Errorf("got %v, %v, want nil, nil", got, err)
	}
}

// Every one of these must be a CorruptError: callers set such a file aside and serve on, any other error stops them.
func TestReadSaysThatAFileIsCorrupt(t *testing.T) {
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
			corrupt := (*CorruptError)(nil)
			if !errors.As(err, &corrupt) {
				t.Fatalf("got %v, %v, want a CorruptError", got, err)
			}
			if corrupt.UID != uidA || corrupt.Path != path {
				t.Errorf("got UID %s and path %s, want %s and %s", corrupt.UID, corrupt.Path, uidA, path)
			}
			if !strings.Contains(err.Error(), path) {
				t.Errorf("error %q does not name the file", err)
			}
		})
	}
}

func TestReadTakesARecordOfTheLargestSize(t *testing.T) {
	valid, err := os.ReadFile(filepath.Join("testdata", "format1.json"))
	if err != nil {
		t.Fatal(err)
	}
	s := openStore(t)
	data := append(bytes.Clone(valid), bytes.Repeat([]byte(" "), MaxSize-len(valid))...)
	if err := os.WriteFile(filepath.Join(s.Dir(), string(uidA)+".json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(uidA); err != nil {
		t.Errorf("Read: %v", err)
	}
}

// A claim may have 32 results, with names as long as the API takes them.
func TestTheLargestClaimFitsTheSizeLimit(t *testing.T) {
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

func TestUIDsThatAreNoPlainNamesAreRefusedEverywhere(t *testing.T) {
	s := openStore(t)
	outside := filepath.Join(filepath.Dir(s.Dir()), "victim.json")
	if err := os.WriteFile(outside, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []types.UID{
		"", ".", "..", "../victim", "/etc/passwd", "a/b", "a\x00b", "-a", "a.b", "corrupt/a", "a\n", types.UID(strings.Repeat("a", 65)),
	} {
		r := sample(uid)
		if err := s.Write(r); err == nil {
			t.Errorf("Write of UID %q: want an error", uid)
		}
		if err := s.Remove(uid); err == nil {
			t.Errorf("Remove of UID %q: want an error", uid)
		}
		if got, err := s.Read(uid); err == nil {
			t.Errorf("Read of UID %q: got %v, want an error", uid, got)
		}
		if got, err := s.SetAside(uid); err == nil {
			t.Errorf("SetAside of UID %q: got %q, want an error", uid, got)
		}
	}
	if diff := cmp.Diff([]string{"claims", "victim.json"}, mustReadDir(t, filepath.Dir(s.Dir()))); diff != "" {
		t.Errorf("files outside the store (-want +got):\n%s", diff)
	}
}

func mustReadDir(t *testing.T, dir string) []string {
	t.Helper()
	names, err := Disk{}.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestUIDsListsRecordsAndPassesOverOtherFiles(t *testing.T) {
	s := openStore(t)
	for _, name := range []string{"b.json", "a.json", ".c.json.1234", "d.txt", "notes", "e.json.tmp", "x y.json", ".json"} {
		if err := os.WriteFile(filepath.Join(s.Dir(), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.UIDs()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]types.UID{"a", "b"}, got); diff != "" {
		t.Errorf("UIDs (-want +got):\n%s", diff)
	}
}

func TestRemoveIsRepeatable(t *testing.T) {
	s := openStore(t)
	if err := s.Write(sample(uidA)); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if err := s.Remove(uidA); err != nil {
			t.Errorf("Remove %d: %v", i, err)
		}
	}
	if got := listAll(t, s.Dir()); len(got) != 0 {
		t.Errorf("left behind: %v", got)
	}
}

func TestSetAsideKeepsTheBytesAndTakesTheFileOutOfService(t *testing.T) {
	s := openStore(t)
	path := filepath.Join(s.Dir(), string(uidA)+".json")
	if err := os.WriteFile(path, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	aside, err := s.SetAside(uidA)
	if err != nil {
		t.Fatalf("SetAside: %v", err)
	}
	if data, err := os.ReadFile(aside); err != nil || string(data) != "broken" {
		t.Errorf("at %s: got %q, %v, want the broken bytes", aside, data, err)
	}
	if got, err := s.Read(uidA); got != nil || err != nil {
		t.Errorf("Read: got %v, %v, want nil, nil", got, err)
	}
	if uids, err := s.UIDs(); len(uids) != 0 || err != nil {
		t.Errorf("UIDs: got %v, %v, want none", uids, err)
	}
}

func TestTwoStoresOverOneFolderSeeEachOther(t *testing.T) {
	one := openStore(t)
	two := openStoreIn(t, Disk{}, one.Dir())
	if err := one.Write(sample(uidA)); err != nil {
		t.Fatal(err)
	}
	got, err := two.Read(uidA)
	if err != nil {
		t.Fatalf("Read: %v", err)
	}
	if diff := cmp.Diff(sample(uidA), got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	if err := two.Remove(uidA); err != nil {
		t.Fatal(err)
	}
	if got, err := one.Read(uidA); got != nil || err != nil {
		t.Errorf("after Remove by the other: got %v, %v, want nil, nil", got, err)
	}
}

func TestGPUsAreSortedAndNamedOnce(t *testing.T) {
	r := &Record{Devices: []Device{{GPU: "c"}, {GPU: "a"}, {GPU: "c"}, {GPU: "b"}}}
	if diff := cmp.Diff([]string{"a", "b", "c"}, r.GPUs()); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
}

func TestErrorsOfTheDiskNameTheStepAndKeepTheirCause(t *testing.T) {
	tests := map[string]struct {
		op   string
		call func(s *Store) error
		want string
	}{
		"Write":       {"WriteFile", func(s *Store) error { return s.Write(sample(uidA)) }, "write the record of claim team-a/train-gpus"},
		"Read":        {"ReadFile", func(s *Store) error { _, err := s.Read(uidA); return err }, string(uidA) + ".json"},
		"Remove":      {"Remove", func(s *Store) error { return s.Remove(uidA) }, string(uidA)},
		"UIDs":        {"ReadDir", func(s *Store) error { _, err := s.UIDs(); return err }, "list the folder"},
		"SetAside":    {"Rename", func(s *Store) error { _, err := s.SetAside(uidA); return err }, "set aside"},
		"Open, mkdir": {"MkdirAll", func(s *Store) error { _, err := OpenStore(s.fs, s.dir); return err }, "make the folder"},
		"Open, list":  {"ReadDir", func(s *Store) error { _, err := OpenStore(s.fs, s.dir); return err }, "list the folder"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := openStore(t)
			s.fs = failing(tt.op, &fs.PathError{Op: "op", Path: "p", Err: syscall.ENOSPC})
			err := tt.call(s)
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("got %v, want it to wrap ENOSPC", err)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q does not say %q", err, tt.want)
			}
			if corrupt := (*CorruptError)(nil); errors.As(err, &corrupt) {
				t.Errorf("an error of the disk counts as a corrupt record: %v", err)
			}
			if files := listAll(t, s.Dir()); len(files) != 0 {
				t.Errorf("left behind: %v", files)
			}
		})
	}
}
