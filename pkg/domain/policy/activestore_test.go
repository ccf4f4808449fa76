// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

func TestActiveStore_RoundTrip(t *testing.T) {
	for name, p := range map[string]*v1alpha1.NodePolicy{
		"built-in": {},
		"no tiers": decodePolicy(t, "rules: [{tiers: []}]"),
		"all of it": decodePolicy(t, `
metadata: {name: training}
rules:
  - match: {productNames: [NVIDIA H100 80GB HBM3], pciAddresses: ["0000:1b:00.0"], indexes: [0, 3], deviceIDs: ["0x233010DE"], memory: {min: 40Gi}}
    tiers: [mig]
    mig: {mode: layout, layout: {1g.10gb: 2, 3g.40gb: 1}}
    health: {reaction: NoExecute, ignoreXIDs: [94]}
  - match: {uuids: [GPU-1d74e060-e9f9-5ece-8403-f8752dbe85c8]}
    exclude: true
  - tiers: [timeSlice, mps]
    timeSlice: {shares: 8, memory: {minimum: 2Gi, step: 512Mi}, interval: Long}
    mps: {shares: 20, cores: {minimum: 5, step: 5}, sharedMemory: 2Gi}
`),
	} {
		path := filepath.Join(t.TempDir(), "policy.json")
		want := &Active{Name: name, Policy: p}
		if err := NewActiveStore(store.Disk{}, path).Keep(want); err != nil {
			t.Fatal(err)
		}
		got, err := NewActiveStore(store.Disk{}, path).Load()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got.Policy.TypeMeta = p.TypeMeta
		if diff := cmp.Diff(want, got); diff != "" || !want.Equal(got) {
			t.Errorf("policy (-want +got):\n%s", diff)
		}
	}
}

func TestActive_Equal(t *testing.T) {
	first, renamed := &Active{Name: BuiltIn, Policy: &v1alpha1.NodePolicy{}}, &Active{Name: "other", Policy: &v1alpha1.NodePolicy{}}
	none := (*Active)(nil)
	if first.Equal(renamed) || !first.Equal(&Active{Name: BuiltIn, Policy: &v1alpha1.NodePolicy{}}) || none.Equal(first) || !none.Equal(nil) {
		t.Error("Equal is wrong")
	}
}

func TestActiveStoreLoad_Invalid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.json")
	if p, err := NewActiveStore(store.Disk{}, path).Load(); p != nil || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: got %v, %v, want that it is missing", p, err)
	}
	for data, want := range map[string]string{
		"":             "JSON",
		"\x00\x01":     path,
		`{"format":2}`: "format 2",
		`{"format":1}`: path,
		`{"format":1,"name":"x","policy":{"apiVersion":"gpu.cleave.dev/v1alpha1","kind":"NodePolicy","rules":[{"later":1}]}}`: "later",
	} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := NewActiveStore(store.Disk{}, path).Load()
		if p != nil || err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, %v, want an error that says %q", data, p, err, want)
		}
	}
}
