// SPDX-License-Identifier: Apache-2.0

package records

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// The file of format 1, as releases write it.
const modeChangeFile = `{"format":1,"bootID":"boot","gpu":"gpu-0000-07-00-0","uuid":"GPU-a","enable":true,"persistence":true}`

func TestModeStore(t *testing.T) {
	s, err := OpenModes(store.Disk{}, filepath.Join(t.TempDir(), "modes"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.Dir(), "gpu-0000-07-00-0.json")
	if err := os.WriteFile(path, []byte(modeChangeFile), 0o600); err != nil {
		t.Fatal(err)
	}
	want := &ModeChange{Format: 1, BootID: "boot", GPU: "gpu-0000-07-00-0", UUID: "GPU-a", Enable: true, Persistence: true}
	got, err := s.Read("gpu-0000-07-00-0")
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if err := s.Write(want); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != modeChangeFile {
		t.Errorf("written: %s, %v", data, err)
	}
	for name, data := range map[string]string{
		"empty": "", "of no format": `{"gpu":"gpu-0000-07-00-0","uuid":"u"}`, "later": `{"format":2,"gpu":"gpu-0000-07-00-0","uuid":"u"}`,
		"another GPU": `{"format":1,"gpu":"gpu-0000-1c-00-0","uuid":"u"}`, "no UUID": `{"format":1,"gpu":"gpu-0000-07-00-0"}`,
	} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Read("gpu-0000-07-00-0"); got != nil || !errors.As(err, new(*store.CorruptError)) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
