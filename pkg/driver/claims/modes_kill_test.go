// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/killtest"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// modeGPUs is how many GPUs change their mode.
const modeGPUs = 2

// However a change of a MIG mode is cut short, the GPU is in one of the two modes and known to be, nothing is pending, its
// persistence mode is what it was, its layout is there or nothing, and other GPUs keep their claims.
func TestModes_Killed(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a thousand processes")
	}
	s := killtest.Scenario{Worker: "modes", Lives: 10, Steps: 70, Kinds: 16, Begin: beginModeKills}
	s.Run(t, *kills, *killSeed)
}

func beginModeKills(dir string, random *rand.Rand) (after func(bool) error, err error) {
	node, err := sim.Create(filepath.Join(dir, "node"), "a100-pcie-nvlink-pairs", sim.WithoutDeviceNodes())
	if err != nil {
		return nil, err
	}
	truth := modeTruth{Wants: make([]bool, 4), Persistence: []bool{random.IntN(2) == 0, random.IntN(2) == 0, false, false}}
	if err := errors.Join(killtest.WriteTruth(dir, truth), node.Init()); err != nil {
		return nil, err
	}
	for i, on := range truth.Persistence {
		if err := node.Device(i).Modes().SetPersistenceMode(on); err != nil {
			return nil, err
		}
	}
	return nil, node.Shutdown()
}

// modeTruth is what outlives the plugin: what the policy wants, how the GPUs were set up, and which claims are prepared.
type modeTruth struct {
	Wants, Persistence []bool
	// Claims are the devices of those that are prepared or about to be, by UID; Prepared those of which that is certain.
	Claims   map[types.UID]string
	Prepared map[types.UID]bool
	// Ending is the claim that is being unprepared. Reset is the request of a GPU's reset; empty for none.
	Ending types.UID
	Reset  string
	Next   int
}

// modeWorker is one life.
type modeWorker struct {
	*Preparer
	dir     string
	random  *rand.Rand
	session *nvml.Session
	truth   modeTruth
	life    *killtest.Life
}

func runModeWorker(life *killtest.Life) error {
	w := &modeWorker{dir: life.Args, random: rand.New(rand.NewPCG(life.Seed, 1)), life: life}
	if err := killtest.ReadTruth(w.dir, &w.truth); err != nil {
		return err
	}
	ctx := context.Background()
	if err := w.open(ctx); err != nil {
		return err
	}
	w.Recover(ctx)
	if err := w.published(); err != nil {
		return fmt.Errorf("after the start: %w", err)
	}
	for round := range 6 {
		if err := w.settle(ctx); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		w.act(ctx)
	}
	return w.settle(ctx)
}

func (w *modeWorker) open(ctx context.Context) error {
	root := filepath.Join(w.dir, "node")
	node, err := sim.Open(root)
	if err != nil {
		return err
	}
	if w.session, err = nvml.OpenLibrary(ctx, hookedLibrary{simulated.Library(node), w.life.Step}, node.Sysfs()); err != nil {
		return err
	}
	disk := hookedDisk{Disk: store.Disk{}, step: w.life.Step}
	o, err := stateIn(w.dir, disk)
	modes, modesErr := records.OpenModes(disk, filepath.Join(w.dir, "modes"))
	specs, specsErr := specsIn(w.dir, testDriver)
	if err := errors.Join(err, modesErr, specsErr); err != nil {
		return err
	}
	o.Specs = specs.under
	o.Modes = &ModeOptions{Store: modes, Tool: simTool{root, w.life.Step}, Claims: w.claims,
		Last: records.NewResetFile(disk, filepath.Join(w.dir, records.ResetFile))}
	w.Preparer = New(o)
	if err := w.Load(ctx, nil); err != nil {
		return err
	}
	w.SetHardware(modeHardware{w.session, func() []bool { return w.truth.Wants }}, specs)
	return nil
}

// claims are those of the API server.
func (w *modeWorker) claims(_ context.Context, visit func(claim *resourceapi.ResourceClaim) bool) error {
	for uid, device := range w.truth.Claims {
		visit(deviceClaim(uid, device))
	}
	return nil
}

// settle does what the control loop does until nothing is left to do: it finishes and changes modes and lays layouts, and the
// kubelet calls again what got no answer. Then all is checked.
func (w *modeWorker) settle(ctx context.Context) error {
	if uid := w.truth.Ending; uid != "" {
		if err := w.end(ctx, uid); err != nil {
			return fmt.Errorf("unprepare %s again: %w", uid, err)
		}
	}
	for uid, device := range w.truth.Claims {
		if w.truth.Prepared[uid] {
			continue
		}
		if _, err := w.Prepare(ctx, deviceClaim(uid, device)); err != nil {
			return fmt.Errorf("prepare %s again: %w", device, err)
		}
		w.note(uid, device, true)
	}
	for i := range modeGPUs {
		g := &w.session.Node().GPUs[i]
		name := g.PCI.DeviceName()
		target := w.truth.Wants[i]
		if w.allocated(name) {
			target = g.MIG.Enabled // as the control loop waits
		}
		if target == g.MIG.Enabled && !w.Modes.Left()[name] {
			continue
		}
		if err := w.Modes.Begin(name, target)(ctx); err != nil {
			return fmt.Errorf("change GPU %d to %t: %w", i, target, err)
		}
	}
	if device, _, _ := strings.Cut(w.truth.Reset, "."); w.truth.Reset != w.Modes.Resets.Done() && !w.allocated(device) {
		err := w.Modes.BeginReset(device, w.truth.Reset)(ctx)
		if err != nil { // a reset that failReset has fail; the control loop tries again
			err = w.Modes.BeginReset(device, w.truth.Reset)(ctx)
		}
		if err != nil {
			return fmt.Errorf("reset %s: %w", device, err)
		}
		if w.Modes.Resets.Done() != w.truth.Reset {
			return fmt.Errorf("reset %s: the last one is %q", w.truth.Reset, w.Modes.Resets.Done())
		}
	}
	if problems := w.Partitions.KeepLayouts(ctx, w.backend.Load().hardware.Node()); len(problems) > 0 {
		return problems[0].Err
	}
	return w.check(ctx)
}

func (w *modeWorker) allocated(name string) bool {
	for _, device := range w.truth.Claims {
		if strings.HasPrefix(device, name) {
			return true
		}
	}
	return false
}

// note notes a claim; one without a device is gone.
func (w *modeWorker) note(uid types.UID, device string, prepared bool) {
	if w.truth.Claims == nil {
		w.truth.Claims, w.truth.Prepared = map[types.UID]string{}, map[types.UID]bool{}
	}
	w.truth.Claims[uid], w.truth.Prepared[uid] = device, prepared
	if device == "" {
		delete(w.truth.Claims, uid)
		delete(w.truth.Prepared, uid)
	}
	_ = killtest.WriteTruth(w.dir, w.truth)
}

// act lets the label change, or a claim come or go.
func (w *modeWorker) act(ctx context.Context) {
	switch dice := w.random.IntN(12); {
	case dice > 9:
		w.truth.Next++
		w.truth.Reset = fmt.Sprintf("%s.%d", w.session.Node().GPUs[w.random.IntN(modeGPUs)].PCI.DeviceName(), w.truth.Next)
		_ = killtest.WriteTruth(w.dir, w.truth)
	case dice < 6:
		i := w.random.IntN(modeGPUs)
		w.truth.Wants[i] = !w.truth.Wants[i]
		_ = killtest.WriteTruth(w.dir, w.truth)
		if w.random.IntN(2) == 0 { // the driver cannot reset the GPU when its mode is set, and nvidia-smi can
			w.failReset(i)
		}
	case dice < 8 && len(w.truth.Claims) > 0:
		uids := slices.Sorted(maps.Keys(w.truth.Claims))
		w.truth.Ending = uids[w.random.IntN(len(uids))]
		_ = killtest.WriteTruth(w.dir, w.truth)
		_ = w.end(ctx, w.truth.Ending)
	default:
		i := w.random.IntN(len(w.session.Node().GPUs))
		name := w.session.Node().GPUs[i].PCI.DeviceName()
		node := w.backend.Load().hardware.Node()
		shapes := node.Shapes(&node.GPUs[i])
		if len(shapes) == 0 || w.allocated(name) {
			return
		}
		w.truth.Next++
		uid := types.UID(fmt.Sprintf("c%d", w.truth.Next))
		device := shapes[w.random.IntN(len(shapes))].Name()
		w.note(uid, device, false)
		if _, err := w.Prepare(ctx, deviceClaim(uid, device)); err == nil {
			w.note(uid, device, true)
		}
	}
}

// failReset has the next reset of a GPU fail.
func (w *modeWorker) failReset(i int) {
	n, err := sim.Open(filepath.Join(w.dir, "node"))
	if err == nil && n.Faults().Clear(i) == nil {
		_, _ = n.Faults().Inject(sim.Fault{GPU: i, Call: sim.CallReset, Code: sim.CodeUnknown, Times: 1})
	}
}

func (w *modeWorker) end(ctx context.Context, uid types.UID) error {
	if err := w.Unprepare(ctx, refOf(deviceClaim(uid))); err != nil {
		return err
	}
	w.truth.Ending = ""
	w.note(uid, "", false)
	return nil
}
