// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/nvml"
	"github.com/cleave-dra/cleave/pkg/nvml/simulated"
	"github.com/cleave-dra/cleave/pkg/records"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/store"
)

// envModeWorker is set in a process that is one life of a plugin which changes MIG modes: directory, seed, step to be killed at.
const envModeWorker = "CLEAVE_TEST_MODE_WORKER"

// modeLives is how often the plugin is killed on one node, modeGPUs how many GPUs change their mode.
const (
	modeLives = 10
	modeGPUs  = 2
)

// However a change of a MIG mode is cut short, the GPU is in one of the two modes and known to be, nothing is pending, its
// persistence mode is what it was, its layout is there or nothing, and other GPUs keep their claims.
func TestModes_Killed(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a thousand processes")
	}
	var next, killed atomic.Int64
	var mu sync.Mutex
	at := map[string]int{}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for killed.Load() < int64(*kills) && !t.Failed() {
				seed := *killSeed + uint64(next.Add(1)) - 1
				steps, err := modeScenario(t.TempDir(), seed)
				if err != nil {
					t.Errorf("seed %d (run with -kill-seed=%d -kills=1): %v", seed, seed, err)
				}
				killed.Add(int64(len(steps)))
				mu.Lock()
				for _, s := range steps {
					at[s]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	var names []string
	for s := range at {
		names = append(names, s)
	}
	slices.Sort(names)
	for _, s := range names {
		t.Logf("%4d killed %s", at[s], s)
	}
	if *kills >= 1000 && len(names) < 16 {
		t.Errorf("the plugin was killed at %d kinds of steps only: do the hooks work?", len(names))
	}
}

// modeScenario is one node with many lives of the plugin. It returns the steps at which it was killed.
func modeScenario(dir string, seed uint64) (steps []string, err error) {
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	random := rand.New(rand.NewPCG(seed, 0))
	node, err := sim.Create(filepath.Join(dir, "node"), "a100-pcie-nvlink-pairs", sim.WithoutDeviceNodes())
	if err != nil {
		return nil, err
	}
	truth := modeTruth{Wants: make([]bool, 4), Persistence: []bool{random.IntN(2) == 0, random.IntN(2) == 0, false, false}}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "specs"), 0o700), truth.save(dir), node.Init()); err != nil {
		return nil, err
	}
	for i, on := range truth.Persistence {
		if err := node.Device(i).Modes().SetPersistenceMode(on); err != nil {
			return nil, err
		}
	}
	if err := node.Shutdown(); err != nil {
		return nil, err
	}
	for life := range modeLives {
		killAt := 1 + random.IntN(70)
		if life == modeLives-1 {
			killAt = 0
		}
		command := exec.Command(os.Args[0])
		command.Env = append(os.Environ(), fmt.Sprintf("%s=%s,%d,%d", envModeWorker, dir, seed*1000+uint64(life), killAt))
		var out bytes.Buffer
		command.Stdout, command.Stderr = &out, &out
		err := command.Run()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
			last, _ := readModeTruth(dir)
			steps = append(steps, last.LastStep)
			continue
		}
		if err != nil {
			return steps, fmt.Errorf("life %d, killed before %v: %w\n%s", life, steps, err, out.String())
		}
	}
	return steps, nil
}

// modeTruth is what outlives the plugin: what the policy wants, how the GPUs were set up, and which claims are prepared.
type modeTruth struct {
	Wants, Persistence []bool
	// Claims are the devices of those that are prepared or about to be, by UID; Prepared those of which that is certain.
	Claims   map[types.UID]string
	Prepared map[types.UID]bool
	// Ending is the claim that is being unprepared.
	Ending   types.UID
	Next     int
	LastStep string
}

func readModeTruth(dir string) (truth modeTruth, err error) {
	data, err := os.ReadFile(filepath.Join(dir, truthFile))
	if err != nil {
		return truth, err
	}
	return truth, json.Unmarshal(data, &truth)
}

func (m *modeTruth) save(dir string) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, truthFile), data, 0o600)
}

// modeWorker is one life.
type modeWorker struct {
	*Preparer
	dir           string
	random        *rand.Rand
	session       *nvml.Session
	truth         modeTruth
	killAt, steps int
}

func runModeWorker(args string) error {
	fields := strings.Split(args, ",")
	seed, err := strconv.ParseUint(fields[1], 10, 64)
	if err != nil {
		return err
	}
	w := &modeWorker{dir: fields[0], random: rand.New(rand.NewPCG(seed, 1))}
	if w.killAt, err = strconv.Atoi(fields[2]); err != nil {
		return err
	}
	if w.truth, err = readModeTruth(w.dir); err != nil {
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

func (w *modeWorker) step(what string) {
	if w.steps++; w.steps != w.killAt {
		return
	}
	w.truth.LastStep = what
	_ = w.truth.save(w.dir)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func (w *modeWorker) open(ctx context.Context) error {
	root := filepath.Join(w.dir, "node")
	node, err := sim.Open(root)
	if err != nil {
		return err
	}
	if w.session, err = nvml.OpenLibrary(ctx, hookedLibrary{simulated.Library(node), w.step}, node.Sysfs()); err != nil {
		return err
	}
	disk := hookedDisk{Disk: store.NewDisk(), step: w.step}
	kept, err := records.OpenStore(disk, filepath.Join(w.dir, "claims"))
	layouts, layoutsErr := records.OpenLayouts(disk, filepath.Join(w.dir, "layouts"))
	modes, modesErr := records.OpenModes(disk, filepath.Join(w.dir, "modes"))
	locks, locksErr := OpenLocks(filepath.Join(w.dir, "locks"))
	if err := errors.Join(err, layoutsErr, modesErr, locksErr); err != nil {
		return err
	}
	specs := &specDir{dir: filepath.Join(w.dir, "specs")}
	w.Preparer = New(Options{
		Identity: testID, BootID: bootNow, Store: kept, Layouts: layouts, Locks: locks, Specs: specs,
		Modes: &ModeOptions{Store: modes, Tool: simTool{root, w.step}, Claims: w.claims,
			Holders: func(context.Context, *gpu.GPU) ([]Holder, error) { return nil, nil }},
	})
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
	if problems := w.Partitions.KeepLayouts(ctx); len(problems) > 0 {
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
	_ = w.truth.save(w.dir)
}

// act lets the label change, or a claim come or go.
func (w *modeWorker) act(ctx context.Context) {
	switch dice := w.random.IntN(10); {
	case dice < 6:
		i := w.random.IntN(modeGPUs)
		w.truth.Wants[i] = !w.truth.Wants[i]
		_ = w.truth.save(w.dir)
		if w.random.IntN(2) == 0 { // the driver cannot reset the GPU when its mode is set, and nvidia-smi can
			w.failReset(i)
		}
	case dice < 8 && len(w.truth.Claims) > 0:
		var uids []types.UID
		for uid := range w.truth.Claims {
			uids = append(uids, uid)
		}
		slices.Sort(uids)
		w.truth.Ending = uids[w.random.IntN(len(uids))]
		_ = w.truth.save(w.dir)
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

// end unprepares a claim.
func (w *modeWorker) end(ctx context.Context, uid types.UID) error {
	if err := w.Unprepare(ctx, refOf(deviceClaim(uid))); err != nil {
		return err
	}
	w.truth.Ending = ""
	w.note(uid, "", false)
	return nil
}
