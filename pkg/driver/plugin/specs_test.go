// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/driver/cdi"
	"github.com/cleave-dra/cleave/pkg/driver/controller"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// A node whose control nodes are missing is published, with a taint on every device, and nothing is allocated there.
func TestSpecs_ControlNodesMissing(t *testing.T) {
	session, err := simulated.Open(t.Context(), "a30")
	if err != nil {
		t.Fatal(err)
	}
	offered := policy.Apply(&v1alpha1.NodePolicy{}, session.Node(), policy.Capabilities{})
	root := filepath.Join(t.TempDir(), "driver")
	if err := os.MkdirAll(filepath.Join(root, "dev/pts"), 0o700); err != nil {
		t.Fatal(err)
	}
	var s specs
	if got := controller.SpecTaints(offered, s.incomplete()); len(got) > 0 {
		t.Errorf("before the spec is written: taints %v, want none", got)
	}
	static, err := cdi.NewStatic(cdi.Options{Driver: "gpu.cleave.dev", Dir: t.TempDir(), DriverRoot: root, ContainerDriverRoot: root, Procfs: fstest.MapFS{}})
	if err != nil {
		t.Fatal(err)
	}
	s.Static = static
	if err := static.Refresh(t.Context(), session.Node()); err == nil {
		t.Fatal("the spec was written without device nodes")
	}
	var want, got []string
	for i := range offered.GPUs {
		for _, shape := range offered.Shapes(&offered.GPUs[i]) {
			want = append(want, shape.Name())
		}
	}
	for _, taint := range controller.SpecTaints(offered, s.incomplete()) {
		if taint.Key == nodeslices.TaintIncomplete {
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
