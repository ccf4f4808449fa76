// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// A GPU that cannot be injected is looked for less and less often: each time runs nvidia-modprobe.
func TestSpecs_RetriesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		session, err := simulated.Open(t.Context(), "a30")
		if err != nil {
			t.Fatal(err)
		}
		searched := 0
		s := &specs{Static: incompleteSpec(t, newClosedGPU(), &searched)}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		s.keep(ctx, session.Node, 2*time.Second, 24*time.Hour)
		if searched < 55 || searched > 65 {
			t.Errorf("searched %d times within an hour, want about once a minute", searched)
		}
	})
}

// The kubelet's directories are root's alone, and in a pod with a user namespace a hook runs as nobody.
func TestOpenHookDir(t *testing.T) {
	config := &Config{DriverName: "gpu.cleave.dev"}
	if dir, err := openHookDir(config); err != nil || dir != "" {
		t.Errorf("none wanted: got %q, %v", dir, err)
	}
	config.HookDir = filepath.Join(t.TempDir(), "cleave")
	if err := os.Mkdir(config.HookDir, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := openHookDir(config)
	if err != nil || dir != filepath.Join(config.HookDir, "gpu.cleave.dev") {
		t.Fatalf("got %q, %v", dir, err)
	}
	for _, d := range []string{config.HookDir, dir} {
		if info, err := os.Stat(d); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: mode %v, %v, want 0755: all users have to come to the hook", d, info.Mode(), err)
		}
	}
	config.HookDir = "/proc/cleave" // where nothing can be made
	if dir, err := openHookDir(config); err == nil {
		t.Errorf("got %q, want an error", dir)
	}
}
