// SPDX-License-Identifier: Apache-2.0

package records

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

func layout() *Layout {
	return &Layout{
		Format: 1, BootID: "boot", GPU: "gpu-0000-1b-00-0", UUID: "GPU-a",
		Places: []gpu.Place{{ProfileID: 9, Placement: gpu.Placement{Start: 0, Size: 4}}, {ProfileID: 19, Placement: gpu.Placement{Start: 6, Size: 1}}},
	}
}

func openLayouts(t *testing.T) *LayoutStore {
	t.Helper()
	s, err := OpenLayouts(store.Disk{}, filepath.Join(t.TempDir(), "layouts"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestLayoutHas(t *testing.T) {
	l := layout()
	if !l.Has(l.Places[1]) || l.Has(gpu.Place{ProfileID: 20, Placement: l.Places[1].Placement}) || (*Layout)(nil).Has(l.Places[1]) {
		t.Error("a layout has its own places and no others, and no layout has none")
	}
}

func TestLayoutStoreRead_Corrupt(t *testing.T) {
	for name, data := range map[string]string{
		"another GPU": `{"format":1,"gpu":"gpu-0000-1c-00-0","uuid":"u"}`, "no UUID": `{"format":1,"gpu":"gpu-0000-1b-00-0"}`,
	} {
		s := openLayouts(t)
		if err := os.WriteFile(filepath.Join(s.Dir(), "gpu-0000-1b-00-0.json"), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		corrupt := (*store.CorruptError)(nil)
		if got, err := s.Read("gpu-0000-1b-00-0"); got != nil || !errors.As(err, &corrupt) || corrupt.Name != "gpu-0000-1b-00-0" {
			t.Errorf("%s: got %v, %v, want a CorruptError", name, got, err)
		}
	}
}

func FuzzDecodeLayout(f *testing.F) {
	f.Add([]byte(`{"format":1,"bootID":"b","gpu":"gpu-0000-1b-00-0","uuid":"u","places":[{"profileID":19,"placement":{"start":6,"size":1}}]}`))
	f.Add([]byte(`{"format":1,"gpu":"gpu-0000-1b-00-0","uuid":"u","places":null,"witnesses":[{"place":{"profileID":19},"witness":"w"}]}`))
	f.Add([]byte(`{"format":1,"gpu":"gpu-0","uuid":"0","witnesses":[]}`))
	f.Add([]byte(`{"format":2,"readableFrom":1,"gpu":"gpu-0000-1b-00-0","uuid":"u","places":null,"x":{"y":[1,{}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := DecodeLayout(data); err == nil {
			fuzzFormat(t, layoutFormat, data)
		}
	})
}

func TestLayoutStore_NamesThatAreNoDevices(t *testing.T) {
	s := openLayouts(t)
	for _, device := range []string{"", "../x", "gpu-", "gpu-0000/..", "gpu-" + strings.Repeat("0", 64)} {
		if _, err := s.Read(device); err == nil {
			t.Errorf("%q passed for a device", device)
		}
		if s.Write(&Layout{GPU: device}) == nil || s.Remove(device) == nil {
			t.Errorf("%q passed for a device", device)
		}
	}
}
