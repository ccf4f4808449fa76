// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/driver/smi"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// simTool is nvidia-smi on a simulated node: each run is a session of its own, as of another process.
type simTool struct {
	root string
	step func(what string) // nil for none
}

// run has one GPU open for as long as a run takes; reset comes after that.
func (s simTool) run(what string, pci gpu.PCIAddress, use func(n *sim.Node, d *sim.Device) error, reset bool) error {
	_ = hook(s.step, nil, "before "+what)
	n, err := sim.Open(s.root)
	if err != nil {
		return err
	}
	if err := n.Init(); err != nil {
		return err
	}
	d, err := n.DeviceByPCIBusID(pci.String())
	if err == nil {
		err = use(n, d)
	}
	if err := errors.Join(err, n.Shutdown()); err != nil {
		return err
	}
	if reset {
		err = n.Hardware().Reset(d.Number())
	}
	_ = hook(s.step, nil, "after "+what)
	return err
}

func (s simTool) Query(_ context.Context, pci gpu.PCIAddress) (st smi.State, err error) {
	err = s.run("query", pci, func(_ *sim.Node, d *sim.Device) error {
		current, pending, err := d.MIG().MIGMode()
		persistence, modeErr := d.Modes().PersistenceMode()
		st = smi.State{Current: current, Pending: pending, Persistence: persistence}
		return errors.Join(err, modeErr)
	}, false)
	return st, err
}

func (s simTool) SetMode(_ context.Context, pci gpu.PCIAddress, enable bool) (said string, err error) {
	return "", s.run("nvidia-smi -mig", pci, func(_ *sim.Node, d *sim.Device) error {
		_, err := d.MIG().SetMIGMode(enable) // what is pending is no error of nvidia-smi
		return err
	}, false)
}

func (s simTool) SetPersistence(_ context.Context, pci gpu.PCIAddress, on bool) error {
	return s.run("nvidia-smi -pm", pci, func(_ *sim.Node, d *sim.Device) error { return d.Modes().SetPersistenceMode(on) }, false)
}

func (s simTool) Reset(_ context.Context, pci gpu.PCIAddress) error {
	return s.run("nvidia-smi --gpu-reset", pci, func(*sim.Node, *sim.Device) error { return nil }, true)
}

// modeBed is a plugin on a node with A100s, as its policy has changed.
type modeBed struct {
	*simBed
	root    string
	other   *sim.Node // as another process has it
	holders []Holder
	api     []*resourceapi.ResourceClaim
	wants   []bool // MIG mode of each GPU
}

func newModeBed(t *testing.T) *modeBed {
	t.Helper()
	b := &modeBed{root: filepath.Join(t.TempDir(), "node"), wants: make([]bool, 8)}
	var err error
	b.other, err = sim.Create(b.root, "dgx-a100", sim.WithoutDeviceNodes())
	must(t, err)
	opened, err := sim.Open(b.root)
	must(t, err)
	b.simBed = openSimBed(t, t.TempDir(), opened)
	modes, err := records.OpenModes(b.disk, filepath.Join(b.dir, "modes"))
	must(t, err)
	b.Modes.ModeOptions = &ModeOptions{
		Store: modes, Tool: simTool{root: b.root}, Last: records.NewResetFile(b.disk, filepath.Join(b.dir, records.ResetFile)),
		Claims: func(_ context.Context, visit func(*resourceapi.ResourceClaim) bool) error {
			for _, c := range b.api {
				visit(c)
			}
			return nil
		},
	}
	b.Modes.Resets.file = b.Modes.Last
	b.gate.holders = func(context.Context, *gpu.GPU, *gpu.Partition) ([]Holder, error) { return slices.Clone(b.holders), nil }
	b.SetHardware(modeHardware{b.session, func() []bool { return b.wants }}, b.specs)
	b.Recover(t.Context())
	return b
}

// modeHardware is a session whose GPUs are to be in MIG mode, with one layout, or out of it.
type modeHardware struct {
	*nvml.Session
	wants func() []bool
}

func (m modeHardware) Node() *policy.Node {
	rules := &v1alpha1.NodePolicy{}
	for i, on := range m.wants() {
		r := v1alpha1.Rule{Match: &v1alpha1.Match{Indexes: []int32{int32(i)}}, Tiers: []v1alpha1.Tier{v1alpha1.TierExclusive},
			MIG: &v1alpha1.MIGPolicy{ModeChange: v1alpha1.ModeChangeWhenIdle}}
		if on {
			r.Tiers, r.MIG.Layout = []v1alpha1.Tier{v1alpha1.TierMIG}, map[string]int32{"1g.10gb": 3, "4g.40gb": 1}
		}
		rules.Rules = append(rules.Rules, r)
	}
	return policy.Apply(rules, m.Session.Node(), policy.Capabilities{})
}

// change changes the mode of a GPU as its policy wants it.
func (b *modeBed) change(i int) error {
	b.t.Helper()
	return b.Modes.Begin(b.name(i), b.wants[i])(b.t.Context())
}

// setPending has MIG mode pending, as the plugin has the GPU open.
func (b *modeBed) setPending(i int) {
	b.t.Helper()
	_, err := simTool{root: b.root}.SetMode(b.t.Context(), b.session.Node().GPUs[i].PCI, true)
	must(b.t, err)
}

// gpuState is what a GPU is in the end.
type gpuState struct{ Current, Pending, Persistence, Published, Left bool }

func (b *modeBed) state(i int) gpuState {
	b.t.Helper()
	st, err := simTool{root: b.root}.Query(b.t.Context(), b.session.Node().GPUs[i].PCI)
	must(b.t, err)
	return gpuState{st.Current, st.Pending, st.Persistence, b.session.Node().GPUs[i].MIG.Enabled, b.Modes.Left()[b.name(i)]}
}

func (b *modeBed) wantMode(i int, want gpuState) {
	b.t.Helper()
	if diff := cmp.Diff(want, b.state(i)); diff != "" {
		b.t.Errorf("GPU %d (-want +got):\n%s", i, diff)
	}
}

var (
	inMIG    = gpuState{Current: true, Pending: true, Published: true}
	outOfMIG = gpuState{}
)

// A GPU enters MIG mode, gets its layout, and leaves the mode again, while others are used.
func TestModes_Change(t *testing.T) {
	b := newModeBed(t)
	mustPrepare(t, b.Preparer, deviceClaim("other", b.name(3)))
	must(t, (simTool{root: b.root}).SetPersistence(t.Context(), b.session.Node().GPUs[0].PCI, true))
	b.wants[0] = true
	must(t, b.change(0))
	b.wantMode(0, gpuState{Current: true, Pending: true, Published: true, Persistence: true})
	b.kept()
	equal(t, "instances", []string{"0 5@0", "0 19@4", "0 19@5", "0 19@6"}, sortedText(instancesOf(t, b.other)))
	mustPrepare(t, b.Preparer, deviceClaim("part", b.name(0)+"-mig-5-0"))
	b.wants[0] = false
	if err := b.change(0); !errors.Is(err, gpu.ErrInUse) || !strings.Contains(err.Error(), "allocated to claims") {
		t.Errorf("with a claim: %v", err)
	}
	b.wantMode(0, gpuState{Current: true, Pending: true, Published: true, Persistence: true})
	mustUnprepare(t, b.Preparer, deviceClaim("part"))
	must(t, b.change(0))
	b.wantMode(0, gpuState{Persistence: true})
	mustPrepare(t, b.Preparer, deviceClaim("whole", b.name(0)))
	b.wantMode(3, outOfMIG)
}

func sortedText(lines []string) []string {
	place := func(line string) string { _, place, _ := strings.Cut(line, "@"); return place }
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(place(a), place(b)) })
	return lines
}

// Programs that give a GPU up for a reset, or that it needs, are no reason to wait.
func TestModes_Yielding(t *testing.T) {
	b := newModeBed(t)
	b.holders = []Holder{{1, "nvidia-persiste"}, {2, "nv-fabricmanage"}}
	b.wants[0] = true
	must(t, b.change(0))
	b.wantMode(0, inMIG)
}

// While a mode is changed, claims of the GPU are refused at once and say why; those of others are prepared.
func TestModes_PrepareMeanwhile(t *testing.T) {
	b := newModeBed(t)
	_, err := b.other.Faults().Inject(sim.Fault{GPU: 0, Call: sim.CallReset, Hang: true})
	must(t, err)
	published := b.backend.Load().hardware.Node()
	b.wants[0] = true
	ended := make(chan error, 1)
	go func() { ended <- b.change(0) }()
	deadline := time.Now().Add(time.Minute)
	for !errors.Is(b.session.Usable(&b.session.Node().GPUs[0]), gpu.ErrReleased) {
		if time.Now().After(deadline) {
			t.Fatal("the GPU is not released")
		}
	}
	b.wants[0] = false // as claims know it
	if _, err := b.Prepare(t.Context(), deviceClaim("whole", b.name(0))); !errors.Is(err, gpu.ErrReleased) || !errors.Is(err, ErrNoDriver) {
		t.Errorf("Prepare of the GPU = %v", err)
	}
	mustPrepare(t, b.Preparer, deviceClaim("other", b.name(1)))
	b.Recover(t.Context())
	b.kept()
	must(t, b.other.Faults().Clear(0))
	must(t, <-ended)
	b.wantMode(0, inMIG)
	if err := b.session.Usable(&published.GPUs[0]); !errors.Is(err, gpu.ErrModeChanged) {
		t.Errorf("the GPU as it was published: %v", err)
	}
}

// A change that an earlier life began is finished: what is pending ends, and the persistence mode is on again.
func TestModes_Left(t *testing.T) {
	b := newModeBed(t)
	g := &b.session.Node().GPUs[0]
	must(t, b.Modes.write(&records.ModeChange{Format: 1, BootID: bootNow, GPU: b.name(0), UUID: g.UUID, Enable: true, Persistence: true}))
	b.setPending(0)
	b.wantMode(0, gpuState{Pending: true, Left: true})
	must(t, b.change(0))
	b.wantMode(0, gpuState{Persistence: true})
}
