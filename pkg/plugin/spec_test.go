// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/cdi"
	"github.com/cleave-dra/cleave/pkg/publish"
)

// A node whose control nodes are missing is published, with a taint on every device, and nothing is allocated there.
func TestSpecTaints_ControlNodesMissing(t *testing.T) {
	s, hw, _, _ := rankedService(t, "a30")
	root := filepath.Join(t.TempDir(), "driver")
	if err := os.MkdirAll(filepath.Join(root, "dev/pts"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := s.spec.taints(hw.Node()); len(got) > 0 {
		t.Errorf("before the spec is made: taints %v, want none", got)
	}
	static, err := cdi.NewStatic(cdi.Options{Driver: "gpu.cleave.dev", Dir: t.TempDir(), DriverRoot: root, ContainerDriverRoot: root, Procfs: fstest.MapFS{}})
	if err != nil {
		t.Fatal(err)
	}
	s.spec.Static = static
	if err := static.Refresh(t.Context(), hw.Session.Node()); err == nil {
		t.Fatal("the spec was made without device nodes")
	}
	var want, got []string
	for i := range hw.Node().GPUs {
		for _, shape := range hw.Node().Shapes(&hw.Node().GPUs[i]) {
			want = append(want, shape.Name())
		}
	}
	_, view := s.view(hw)
	for _, taint := range view.Taints {
		if taint.Key == publish.TaintIncomplete {
			got = append(got, taint.Device)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" || len(want) == 0 {
		t.Errorf("tainted devices (-want +got):\n%s", diff)
	}
}

// The kubelet's directories are root's alone, and in a pod with a user namespace a hook runs as nobody.
func TestOpenHookDir(t *testing.T) {
	s := &service{config: Config{DriverName: "gpu.cleave.dev"}}
	if dir, err := s.openHookDir(); err != nil || dir != "" {
		t.Errorf("none wanted: got %q, %v", dir, err)
	}
	s.config.HookDir = filepath.Join(t.TempDir(), "cleave")
	if err := os.Mkdir(s.config.HookDir, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := s.openHookDir()
	if err != nil || dir != filepath.Join(s.config.HookDir, "gpu.cleave.dev") {
		t.Fatalf("got %q, %v", dir, err)
	}
	for _, d := range []string{s.config.HookDir, dir} {
		if info, err := os.Stat(d); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: mode %v, %v, want 0755: all users have to come to the hook", d, info.Mode(), err)
		}
	}
	s.config.HookDir = "/proc/cleave" // where nothing can be made
	if dir, err := s.openHookDir(); err == nil {
		t.Errorf("got %q, want an error", dir)
	}
}
