// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// A library that was left on the host by a package must not hide the one of the GPU operator's driver container.
func TestChoose(t *testing.T) {
	host := candidate{"/host/usr/lib64/libnvidia-ml.so.1", "/host"}
	operator := candidate{"/host/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1", "/host/run/nvidia/driver"}
	tests := map[string]struct {
		found  []candidate
		broken map[string]error
		want   candidate
		says   []string
	}{
		"both work":         {[]candidate{host, operator}, nil, host, nil},
		"left over on host": {[]candidate{host, operator}, map[string]error{host.path: gpu.ErrDriverNotLoaded}, operator, nil},
		"only one, broken":  {[]candidate{host}, map[string]error{host.path: gpu.ErrDriverNotLoaded}, host, nil},
		"none can be loaded": {[]candidate{host, operator},
			map[string]error{host.path: gpu.ErrDriverNotLoaded, operator.path: errors.New("version mismatch")}, candidate{},
			[]string{host.path, operator.path, "version mismatch", gpu.ErrDriverNotLoaded.Error()}},
	}
	for name, tt := range tests {
		got, err := choose(t.Context(), tt.found, func(_ context.Context, path string) error { return tt.broken[path] })
		if got != tt.want || (err != nil) != (tt.says != nil) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, tt.want)
		}
		for _, s := range tt.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: error %q does not say %q", name, err, s)
			}
		}
	}
}

func TestMayLoad_OtherLibrary(t *testing.T) {
	path, file := loaded.path, loaded.file
	defer func() { loaded.path, loaded.file = path, file }()
	loaded.path, loaded.file = "", nil
	first, second := withLibrary(t, t.TempDir(), false), withLibrary(t, t.TempDir(), false)
	noteLoaded(first, gpu.ErrLibraryNotFound) // no library after all
	if err := mayLoad(second); err != nil {
		t.Errorf("before any was loaded: %v", err)
	}
	noteLoaded(first, gpu.ErrDriverNotLoaded)
	if err := mayLoad(first); err != nil {
		t.Errorf("the same again: %v", err)
	}
	if err := mayLoad(second); !errors.Is(err, ErrOtherLibrary) || !strings.Contains(err.Error(), first) ||
		!strings.Contains(err.Error(), second) {
		t.Errorf("got %v, want %v that names both", err, ErrOtherLibrary)
	}
}
