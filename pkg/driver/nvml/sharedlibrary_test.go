// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// built is the simulated NVML library, which `make build` makes.
const built = "../../../bin/libnvidia-ml.so.1"

// asModel is set in a process that the test starts for a node model: a process holds one simulated library.
const asModel = "CLEAVE_TEST_MODEL"

// openBoth makes a node and opens it through the engine in process and through go-nvml and the shared library. What both
// find must be the same.
func openBoth(t *testing.T, model string) (node *sim.Node, inProcess, shared *nvml.Session) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	node, err := sim.Create(root, model, sim.WithLibrary(built), sim.WithoutDeviceNodes())
	must(t, err)
	if inProcess, err = simulated.OpenNode(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	shared, err = nvml.Open(t.Context(), nvml.Options{
		DriverRoot: root, Sysfs: os.DirFS(filepath.Join(root, "sys")).(fs.ReadLinkFS), Procfs: os.DirFS(filepath.Join(root, "proc")),
	})
	must(t, err)
	t.Cleanup(func() {
		if err := shared.Close(); err != nil {
			t.Error(err)
		}
	})
	if diff := cmp.Diff(inProcess.Node(), shared.Node()); diff != "" {
		t.Fatalf("node (-in process +shared library):\n%s", diff)
	}
	return node, inProcess, shared
}

func needLibrary(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(built); err != nil {
		t.Skipf("the simulated NVML library is not built (make build): %v", err)
	}
}

// inOwnProcess runs the test again, in a process of its own for a node model.
func inOwnProcess(t *testing.T, model string) {
	t.Helper()
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+strings.Split(t.Name(), "/")[0]+"$")
	again.Env = append(os.Environ(), asModel+"="+model)
	if out, err := again.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestSharedLibrary_Discovery(t *testing.T) {
	needLibrary(t)
	if model := os.Getenv(asModel); model != "" {
		_, _, shared := openBoth(t, model)
		for i := range shared.Node().GPUs {
			if state, err := shared.Fabric(t.Context(), &shared.Node().GPUs[i]); state.Pending() || state == gpu.FabricFailed || err != nil {
				t.Errorf("GPU %d: got fabric %s, %v, of a healthy node", i, state, err)
			}
		}
		return
	}
	for _, model := range simulated.NodeModels() {
		t.Run(model, func(t *testing.T) { inOwnProcess(t, model) })
	}
}

// Without Fabric Manager, A100 GPUs are unusable except in MIG mode, though NVML reports nothing.
func TestSharedLibrary_NoFabricManager(t *testing.T) {
	needLibrary(t)
	if os.Getenv(asModel) == "" {
		inOwnProcess(t, "dgx-a100")
		return
	}
	node, _, shared := openBoth(t, "dgx-a100")
	g := &shared.Node().GPUs[0]
	for _, want := range []gpu.FabricState{gpu.FabricUnmanaged, gpu.FabricUnsupported} {
		must(t, node.Hardware().SetFabricManager(want == gpu.FabricUnsupported))
		if got, err := shared.Fabric(t.Context(), g); got != want || err != nil {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
}

// In protected PCIe mode the confidential computing feature is off, and GPUs refuse work all the same.
func TestSharedLibrary_ProtectedPCIe(t *testing.T) {
	needLibrary(t)
	if os.Getenv(asModel) == "" {
		inOwnProcess(t, "hgx-h100")
		return
	}
	node, _, shared := openBoth(t, "hgx-h100")
	for mode, want := range map[int]bool{sim.ProtectedPCIeNotReady: true, sim.ProtectedPCIeReady: false, sim.ConfidentialOff: false} {
		must(t, errors.Join(node.Hardware().SetConfidential(mode), shared.Refresh(t.Context())))
		if got, err := shared.RefusesWork(t.Context()); got != want || err != nil {
			t.Errorf("mode %d: refuses work %t, %v, want %t", mode, got, err, want)
		}
	}
}

// The real path, through go-nvml and a shared library, must find and do what the engine in process does.
func TestSharedLibrary_Behaviour(t *testing.T) {
	needLibrary(t)
	node, inProcess, shared := openBoth(t, "hgx-h100")
	g := &shared.Node().GPUs[0]
	must(t, shared.SetMIG(t.Context(), g.PCI, true))
	same := func(want int) []gpu.Partition {
		t.Helper()
		a, errA := inProcess.Partitions(t.Context(), g)
		b, errB := shared.Partitions(t.Context(), g)
		if diff := cmp.Diff(a, b); diff != "" || errA != nil || errB != nil || len(b) != want {
			t.Fatalf("partitions, want %d, errors %v and %v (-in process +shared library):\n%s", want, errA, errB, diff)
		}
		return b
	}
	same(0)
	var created []gpu.Partition
	for _, s := range g.Shapes() {
		if !s.IsPartition() {
			continue
		}
		part, err := shared.CreatePartition(t.Context(), s)
		if err != nil {
			t.Fatalf("%s: %v", s.Name(), err)
		}
		if diff := cmp.Diff(same(1), []gpu.Partition{part}); diff != "" {
			t.Errorf("%s (-found +created):\n%s", s.Name(), diff)
		}
		if err := shared.DestroyPartition(t.Context(), g.PCI, part); err != nil {
			t.Errorf("destroy %s: %v", s.Name(), err)
		}
		same(0)
		created = append(created, part)
	}
	if len(created) != 25 {
		t.Errorf("created %d partitions, want 25", len(created))
	}
	// Errors, too, are those of the engine.
	for _, s := range g.Shapes()[1:3] { // 1g at 0 and at 1
		if _, err := shared.CreatePartition(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	_, err := shared.CreatePartition(t.Context(), g.Shapes()[1])
	mustFail(t, err, gpu.ErrInsufficientResources)
	mustFail(t, shared.SetMIG(t.Context(), g.PCI, false), gpu.ErrPartitioned)
	part := same(2)[0]
	client := sim.Client{PID: os.Getpid(), Name: "test", GPUInstance: part.GI, ComputeInstance: *part.CI}
	must(t, node.Clients().Add(0, client))
	mustFail(t, shared.DestroyPartition(t.Context(), g.PCI, part), gpu.ErrInUse)
	if pids, err := shared.Processes(t.Context(), g.PCI); err != nil || len(pids) != 1 || pids[0] != client.PID {
		t.Errorf("got processes %v, %v, want %d", pids, err, client.PID)
	}
}
