// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// driverRoot is the root of a simulated node, for all tests: a process loads one NVML library.
var driverRoot = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "cdi")
	if err != nil {
		return "", err
	}
	_, err = sim.Create(filepath.Join(dir, "root"), "a30", sim.WithLibrary(built))
	return filepath.Join(dir, "root"), err
})

// TestMain keeps the log out of the results: what it says is not under test.
func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{})
	code := m.Run()
	if hasRoot {
		root, _ := driverRoot()
		_ = os.RemoveAll(filepath.Dir(root))
	}
	os.Exit(code)
}

// hasRoot is set if driverRoot was created.
var hasRoot bool

// built is the simulated NVML library, which `make build` makes.
const built = "../../../bin/libnvidia-ml.so.1"

// bed is a simulated node with a driver root, before its spec is written.
type bed struct {
	*Static
	t     *testing.T
	root  string
	board *sim.Node
	node  *gpu.Node
}

// newBed opens the node. Its device nodes are restored when the test ends.
func newBed(t *testing.T) *bed {
	t.Helper()
	if _, err := os.Stat(built); err != nil {
		t.Skipf("the simulated NVML library is not built (make build): %v", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root may make the device files of a driver root")
	}
	hasRoot = true
	root, err := driverRoot()
	must(t, err)
	board, err := sim.Open(root)
	must(t, err)
	session, err := simulated.OpenNode(t.Context(), board)
	must(t, err)
	b := &bed{t: t, root: root, board: board, node: session.Node()}
	b.Static, err = NewStatic(Options{
		Driver: testDriver, Dir: filepath.Join(t.TempDir(), "cdi"), DriverRoot: "/run/driver", ContainerDriverRoot: root,
		Procfs: os.DirFS(filepath.Join(root, "proc")), Sysfs: os.DirFS(filepath.Join(root, "sys")), HookPath: "/var/lib/hook",
	})
	must(t, err)
	t.Cleanup(func() {
		must(t, b.createNodes(t.Context(), driverroot.Nodes{Control: true, UVM: true, GPUs: []int{0, 1}}))
	})
	past := time.Now()
	b.now = func() time.Time { // each attempt is long after the one before
		past = past.Add(retryAfter)
		return past
	}
	return b
}

// createNodes is the simulated nvidia-modprobe.
func (b *bed) createNodes(_ context.Context, nodes driverroot.Nodes) error {
	var err error
	if nodes.UVM {
		err = b.board.Files().Modprobe(true)
	}
	minors := nodes.GPUs
	if nodes.Control {
		minors = append(minors, 255)
	}
	return errors.Join(err, b.board.Files().Modprobe(false, minors...))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// equal fails unless the two are equal.
func equal(t testing.TB, what string, want, got any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// refuses fails unless Ensure fails for GPUs and says all of these.
func (b *bed) refuses(ids []string, says ...string) {
	b.t.Helper()
	b.says(b.Ensure(b.t.Context(), ids), says...)
}

func (b *bed) says(err error, says ...string) {
	b.t.Helper()
	for _, s := range says {
		if err == nil || !strings.Contains(err.Error(), s) {
			b.t.Errorf("got %v, want an error that says %q", err, s)
		}
	}
}

// onDisk is the spec where runtimes look for it.
func (b *bed) onDisk() *specs.Spec {
	b.t.Helper()
	data, err := os.ReadFile(b.Path())
	must(b.t, err)
	spec := &specs.Spec{}
	must(b.t, json.Unmarshal(data, spec))
	return spec
}

func paths(edits *specs.ContainerEdits) []string {
	var all []string
	for _, n := range edits.DeviceNodes {
		all = append(all, n.Path)
	}
	slices.Sort(all)
	return all
}

// written is a node whose spec is written.
func written(t *testing.T) *bed {
	t.Helper()
	b := newBed(t)
	must(t, b.Refresh(t.Context(), b.node))
	return b
}

// ids are the CDI names of all GPUs.
func (b *bed) ids() []string {
	var all []string
	for i := range b.node.GPUs {
		all = append(all, b.DeviceID(b.node.GPUs[i].PCI.DeviceName()))
	}
	return all
}

// fileModes are what the file mode creation mask made of the simulated device nodes.
var fileModes = regexp.MustCompile(`"fileMode":\d+,`)

func TestRefresh_StaticSpec(t *testing.T) {
	s := written(t)
	data, err := os.ReadFile(s.Path())
	must(t, err)
	if strings.Contains(string(data), s.root) {
		t.Errorf("the spec has paths as the plugin sees them, under %s; want the host's", s.root)
	}
	checkGolden(t, "static-a30.json", fileModes.ReplaceAll(data, nil))
}

func TestEnsure_RestoresSpec(t *testing.T) {
	s := written(t)
	want, err := os.ReadFile(s.Path())
	must(t, err)
	for name, spoil := range map[string]func() error{
		"deleted":           func() error { return os.Remove(s.Path()) },
		"truncated":         func() error { return os.Truncate(s.Path(), 10) },
		"emptied":           func() error { return os.Truncate(s.Path(), 0) },
		"overwritten":       func() error { return os.WriteFile(s.Path(), []byte("{}"), 0o600) },
		"directory deleted": func() error { return os.RemoveAll(filepath.Dir(s.Path())) },
	} {
		must(t, s.Ensure(t.Context(), s.ids()))
		must(t, spoil())
		if err := s.Ensure(t.Context(), s.ids()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got, err := os.ReadFile(s.Path())
		if diff := cmp.Diff(string(want), string(got)); diff != "" || err != nil {
			t.Errorf("%s: %v: spec (-before +after):\n%s", name, err, diff)
		}
	}
}

// The disk hangs, here in a file without an end: the control loop reads Problems, for which a refresh must not wait with a write lock.
func TestEnsure_DiskHangs(t *testing.T) {
	s := written(t)
	must(t, errors.Join(os.Remove(s.Path()), syscall.Mkfifo(s.Path(), 0o600)))
	ensured := make(chan error, 1)
	go func() { ensured <- s.Ensure(t.Context(), s.ids()) }()
	pipe, err := os.OpenFile(s.Path(), os.O_WRONLY, 0) // returns once Ensure reads
	must(t, err)
	if s.mu.TryLock() {
		s.mu.Unlock()
	} else {
		t.Error("the lock is held while the disk is waited for")
	}
	if err := errors.Join(pipe.Close(), <-ensured); err != nil {
		t.Error(err)
	}
}

// The driver's files went after a claim's devices were checked.
func TestEnsure_SpecGone(t *testing.T) {
	s := written(t)
	gone := errors.New("no driver")
	s.generated = &generated{err: gone}
	if err := errors.Join(os.Remove(s.Path()), s.file.restore(t.Context(), s.spec)); !errors.Is(err, gone) {
		t.Errorf("got %v, want %v", err, gone)
	}
}

func TestEnsure_UnknownDevice(t *testing.T) {
	s := written(t)
	for _, id := range []string{s.DeviceID("gpu-0000-ff-00-0"), "other/gpu=" + firstGPU, ""} {
		if err := s.Ensure(t.Context(), []string{id}); err == nil {
			t.Errorf("%q: got no error", id)
		}
	}
	if err := static(t, procfs()).Ensure(t.Context(), nil); err == nil {
		t.Error("before the first Write: got no error")
	}
}

func TestNewStatic_DriverRootIsOwnRoot(t *testing.T) {
	if _, err := NewStatic(Options{Driver: testDriver, Dir: t.TempDir(), DriverRoot: "/run/driver", ContainerDriverRoot: "/"}); err == nil {
		t.Error("got no error")
	}
}
