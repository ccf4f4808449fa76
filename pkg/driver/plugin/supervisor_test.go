// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

func TestNoSupervisor(t *testing.T) {
	if err := available(t.Context(), nil); !errors.Is(err, errMPSOff) {
		t.Errorf("got %v, want %v", err, errMPSOff)
	}
	client, err := mps.Dial(filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	if err := available(t.Context(), client); !errors.Is(err, mps.ErrUnavailable) {
		t.Errorf("not started: got %v, want %v", err, mps.ErrUnavailable)
	}
	if _, err := (noSupervisor{}).Ensure(t.Context(), mps.Request{}); !errors.Is(err, errMPSOff) {
		t.Errorf("got %v, want %v", err, errMPSOff)
	}
	// What an earlier run shared is not released by that.
	for _, err := range []error{noSupervisor{}.Release(t.Context(), "gpu", "a"), noSupervisor{}.Retain(t.Context(), "gpu", "owner", []types.UID{"a"})} {
		if !errors.Is(err, errMPSOff) || !strings.Contains(err.Error(), "set mps.enabled=true") {
			t.Errorf("got %v, want %v with the remedy", err, errMPSOff)
		}
	}
	if err := (noSupervisor{}).Retain(t.Context(), "gpu", "owner", nil); err != nil {
		t.Errorf("got %v, want nothing to give back", err)
	}
}
