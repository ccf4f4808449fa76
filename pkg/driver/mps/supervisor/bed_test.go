// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/killtest"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// bed is a node with real processes and mounts, and the simulated driver: its GPUs and its MPS.
type bed struct {
	Config Config
	Root   string
	// Library makes a worker load the simulated library of the driver root.
	Library bool
	// Stale is a root that is searched first, of a driver that is not running; empty for none.
	Stale string
}

// newBed makes a node, and takes away what a failed test left.
func newBed(t testing.TB, opts ...sim.Option) *bed {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it mounts and makes namespaces")
	}
	dir, err := os.MkdirTemp("/tmp", "mps")
	must(t, err)
	b := &bed{Root: filepath.Join(dir, "root"), Config: Config{
		Version: "test", Dir: filepath.Join(dir, "run"), DriverRoot: filepath.Join(dir, "root"), ComputeMode: ExclusiveMode,
		StartTimeout: 20 * time.Second, StopTimeout: 5 * time.Second,
	}}
	if _, err := sim.Create(b.Root, "hgx-h100", append(opts, sim.WithoutDeviceNodes(), sim.WithExecutable(simulator))...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.clean(t, dir) })
	must(t, os.MkdirAll(filepath.Join(b.Root, "dev"), 0o755))
	if err := syscall.Mknod(filepath.Join(b.Root, "dev/null"), syscall.S_IFCHR|0o666, 1<<8|3); err != nil && !errors.Is(err, os.ErrExist) { // (1, 3)
		t.Fatal(err)
	}
	return b
}

// node is the simulated node, as another process has it.
func (b *bed) node(t testing.TB) *sim.Node {
	t.Helper()
	node, err := sim.Open(b.Root)
	must(t, err)
	return node
}

// inject makes the simulated driver fail.
func (b *bed) inject(t testing.TB, f sim.Fault) {
	t.Helper()
	_, err := b.node(t).Faults().Inject(f)
	must(t, err)
}

// startServer starts the MPS server of a GPU, as its first client does.
func (b *bed) startServer(t testing.TB, r mps.Request) {
	t.Helper()
	d := Daemon{GPU: r.Device, UUID: r.UUID, paths: pathsOf(b.Config.Dir, r.Device)}
	if answer, err := b.host().Daemons.Ask(t.Context(), d, "start_server -uid 0"); err != nil {
		t.Fatalf("%v: %s", err, answer)
	}
}

// clean fails the test if anything is left, and takes it away.
func (b *bed) clean(t testing.TB, dir string) {
	if left := b.left(t); left != "" && !t.Failed() {
		t.Errorf("left behind: %s", left)
	}
	for i := range 8 {
		p := b.paths(i)
		found, err := findProcesses(p.pipe)
		if err != nil {
			t.Error(err)
		}
		for _, id := range found {
			_ = killAndWait(context.Background(), id)
		}
		for _, dir := range p.mounts() {
			if err := (Tmpfs{}).Unmount(dir); err != nil {
				t.Error(err)
			}
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}

// request asks for a GPU by its number.
func (b *bed) request(t testing.TB, claim string, index int) mps.Request {
	t.Helper()
	g := b.gpu(index)
	return mps.Request{
		Claim: types.UID(claim), Device: g.PCI.DeviceName(), UUID: g.UUID, PCI: g.PCI, Owner: testOwner,
		Settings: mps.Settings{SharedMemory: 64 << 20, ActiveThreadPercentage: 40, PinnedMemory: 4 << 30},
	}
}

func (b *bed) paths(index int) paths {
	return pathsOf(b.Config.Dir, b.gpu(index).PCI.DeviceName())
}

// gpu is a GPU of an HGX H100.
func (b *bed) gpu(index int) gpu.GPU {
	session, err := b.hardware().open(context.Background())
	if err != nil {
		panic(err)
	}
	defer func() { _ = session.Close() }()
	return session.Node().GPUs[index]
}

// left lists all there is of MPS on the node.
func (b *bed) left(t testing.TB) string {
	t.Helper()
	var left []string
	session, err := b.hardware().open(context.Background())
	must(t, err)
	defer func() { _ = session.Close() }()
	for _, g := range session.Node().GPUs {
		p := pathsOf(b.Config.Dir, g.PCI.DeviceName())
		if mode, err := session.ComputeMode(context.Background(), g.PCI); err != nil || mode != 0 {
			left = append(left, fmt.Sprintf("compute mode %d of %s (%v)", mode, g.PCI, err))
		}
		if found, err := findProcesses(p.pipe); err != nil || len(found) > 0 {
			left = append(left, fmt.Sprintf("processes %v of %s (%v)", found, g.PCI, err))
		}
		for _, path := range []string{p.dir, recordOf(b.Config.Dir, g.PCI.DeviceName()), filepath.Join(b.Root, p.dir)} {
			if _, err := os.Lstat(path); err == nil {
				left = append(left, path)
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for _, dir := range sharedMounts(string(mounts)) {
		if strings.HasPrefix(dir, b.Config.Dir) {
			left = append(left, "mount on "+dir)
		}
	}
	return strings.Join(left, ", ")
}

// wantNothingLeft fails the test if anything of MPS is left.
func (b *bed) wantNothingLeft(t testing.TB) {
	t.Helper()
	if left := b.left(t); left != "" {
		t.Errorf("left behind: %s", left)
	}
}

// wantComputeMode fails the test unless a GPU is in a mode.
func (b *bed) wantComputeMode(t testing.TB, pci gpu.PCIAddress, want int) {
	t.Helper()
	session, err := b.hardware().open(t.Context())
	must(t, err)
	defer func() { _ = session.Close() }()
	if mode, err := session.ComputeMode(t.Context(), pci); mode != want || err != nil {
		t.Errorf("compute mode %d, %v, want %d", mode, err, want)
	}
}

// simHardware is a simulated node on disk.
type simHardware struct{ root string }

func (b *bed) hardware() simHardware { return simHardware{b.Root} }

func (h simHardware) open(ctx context.Context) (*nvml.Session, error) {
	node, err := sim.Open(h.root)
	if err != nil {
		return nil, err
	}
	return nvml.OpenLibrary(ctx, simulated.Library(node), node.Sysfs())
}

func (h simHardware) Open(ctx context.Context) (GPUs, error) {
	node, err := sim.Open(h.root)
	if err != nil {
		return nil, err
	}
	return nvml.OpenDirectLibrary(ctx, simulated.Library(node))
}

// host is the real thing but for the hardware.
func (b *bed) host() Host {
	daemons := Processes{DriverRoots: []string{b.Root}, Self: []string{"/proc/self/exe", runDaemon}, Cgroup: b.Config.DaemonCgroup}
	if b.Stale != "" {
		daemons.DriverRoots = []string{b.Stale, b.Root}
		daemons.Running = func(context.Context) (string, error) { return b.Root, nil }
	}
	return Host{
		Hardware: b.hardware(),
		Daemons:  daemons,
		Mounts:   Tmpfs{},
		Files:    Disk{DriverRoots: []string{b.Root}},
		Disk:     store.Disk{},
	}
}

// serve runs a supervisor in this process until stop.
func (b *bed) serve(t testing.TB) (client *mps.Client, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, b.Config, b.host()) }()
	client = b.dial(t)
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the supervisor ended: %v", err)
		}
	}
	t.Cleanup(stop)
	return client, stop
}

// dial waits until a supervisor answers.
func (b *bed) dial(t testing.TB) *mps.Client {
	t.Helper()
	client, err := mps.Dial(filepath.Join(b.Config.Dir, mps.SocketName))
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := client.Available(t.Context())
		if err == nil {
			return client
		}
		select {
		case <-t.Context().Done():
			t.Fatal(err)
		case <-tick.C:
		}
	}
}

// spawn runs a supervisor in a process of its own, which is killed at a step; at none if that is 0.
func (b *bed) spawn(t *testing.T, killAt int64) *exec.Cmd {
	t.Helper()
	what, err := json.Marshal(b)
	must(t, err)
	command, err := (&killtest.Life{Worker: supervises, Args: string(what), KillAt: killAt}).Command()
	must(t, err)
	command.Stderr = os.Stderr
	must(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	return command
}

// worker is the supervisor that spawn starts.
func worker(life *killtest.Life) error {
	var b bed
	if err := json.Unmarshal([]byte(life.Args), &b); err != nil {
		return err
	}
	if b.Library {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		return Run(ctx, b.Config, []string{"/proc/self/exe", runDaemon})
	}
	return serve(context.Background(), b.Config, stepped(b.host(), func(what string) error {
		if !strings.HasPrefix(what, "before ") && !strings.HasPrefix(what, "after asking get_") { // the node is as after the step before
			life.Step(what)
		}
		return nil
	}))
}
