// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/smi"
)

// plannedHardware is published as it was planned before a change: the next plan follows the change.
type plannedHardware struct {
	modeHardware
	node *policy.Node
}

func (p plannedHardware) Node() *policy.Node { return p.node }

// A large cluster, or a slow API server, only delays a change. A plugin that ends, whichever listing it waits for, leaves the GPU as it was.
func TestModes_ListedSlowly(t *testing.T) {
	for ends := range 3 { // at which listing; 0 for none
		synctest.Test(t, func(t *testing.T) {
			b := newModeBed(t)
			ctx, end := context.WithCancel(t.Context())
			defer end()
			lists := 0
			b.Modes.Claims = func(ctx context.Context, _ func(*resourceapi.ResourceClaim) bool) error {
				if lists++; lists == ends {
					time.AfterFunc(time.Second, end)
				}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Minute):
					return nil
				}
			}
			before := time.Now()
			err := b.Modes.Begin(b.name(0), true)(ctx)
			if ends == 0 {
				must(t, err)
				return
			}
			if took := time.Since(before); !errors.Is(err, context.Canceled) || took > time.Duration(ends)*time.Minute-58*time.Second {
				t.Errorf("listing %d: got %v after %s, want %v at once", ends, err, took, context.Canceled)
			}
			b.wantMode(0, outOfMIG)
			must(t, b.session.Usable(&b.session.Node().GPUs[0]))
		})
	}
}

// A claim that is allocated while the GPU is being closed is seen before the reset; one that comes later is named.
func TestModes_AllocatedMeanwhile(t *testing.T) {
	for name, tt := range map[string]struct {
		list      int // in which list of the API server's claims it appears
		want      string
		state     gpuState
		overtaken []string
	}{
		"before":             {1, "which is not prepared yet", outOfMIG, nil},
		"while it is closed": {2, "which is not prepared yet", outOfMIG, nil},
		"during the reset":   {3, "", inMIG, []string{"ns/claim-late (late)"}},
		"afterwards":         {4, "", inMIG, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newModeBed(t)
			lists, overtaken := 0, []string(nil)
			b.Modes.Claims = func(_ context.Context, visit func(*resourceapi.ResourceClaim) bool) error {
				if lists++; lists >= tt.list {
					visit(deviceClaim("late", b.name(0)))
				}
				return nil
			}
			b.Modes.Overtaken = func(g *gpu.GPU, enabled bool, claims []records.Claim) {
				if g.PCI.DeviceName() != b.name(0) || !enabled {
					t.Errorf("called with %s, enabled %t", g.PCI.DeviceName(), enabled)
				}
				for _, c := range claims {
					overtaken = append(overtaken, c.String())
				}
			}
			b.wants[0] = true
			hw := modeHardware{b.session, func() []bool { return b.wants }}
			b.SetHardware(plannedHardware{hw, hw.Node()}, b.specs)
			err := b.change(0)
			if tt.want == "" && err != nil || tt.want != "" && (!errors.Is(err, gpu.ErrInUse) || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q in it", err, tt.want)
			}
			b.wantMode(0, tt.state)
			equal(t, "overtaken", tt.overtaken, overtaken)
		})
	}
}

// Records of a boot before are dropped. One that cannot be read is no reason not to start, and its change is finished.
func TestModes_Load(t *testing.T) {
	b := newModeBed(t)
	must(t, b.Modes.Store.Write(&records.ModeChange{Format: 1, BootID: "before", GPU: b.name(0), UUID: "GPU-1"}))
	for i := 1; i <= 2; i++ {
		must(t, os.WriteFile(filepath.Join(b.Modes.Store.Dir(), b.name(i)+".json"), []byte("{"), 0o600))
	}
	b.disk.fail = failAt("ReadFile", "/"+b.name(2)+".json", syscall.EIO)
	must(t, b.Modes.load(t.Context()))
	equal(t, "left", map[string]bool{b.name(1): true, b.name(2): true}, b.Modes.Left())
	for i := 1; i <= 2; i++ {
		b.setPending(i)
	}
	must(t, b.change(1))
	b.wantMode(1, outOfMIG)
	if err := b.change(2); !errors.Is(err, syscall.EIO) {
		t.Errorf("got %v while the record cannot be read, want %v", err, syscall.EIO)
	}
	b.wantMode(2, gpuState{Pending: true, Left: true})
	b.disk.fail = nil
	must(t, b.change(2))
	b.wantMode(2, outOfMIG)
	if names, err := b.Modes.Store.Names(); err != nil || len(names) > 0 {
		t.Errorf("records: %v, %v", names, err)
	}
}

// brokenTool does nothing of what it is asked for, and says so of modes.
type brokenTool struct {
	simTool
	says string
}

func (b brokenTool) SetMode(context.Context, gpu.PCIAddress, bool) (string, error) {
	return b.says, nil
}
func (b brokenTool) SetPersistence(context.Context, gpu.PCIAddress, bool) error { return nil }
func (b brokenTool) Reset(context.Context, gpu.PCIAddress) error                { return nil }

// What nvidia-smi says of a mode that stays pending is passed on, and a change has not ended before the GPU shows it.
func TestModes_NotTakenBack(t *testing.T) {
	const says = "Warning: MIG mode is in pending enable state: In use by another client"
	b := newModeBed(t)
	b.Modes.Tool = brokenTool{simTool{root: b.root}, says}
	b.wants[0] = true
	if err := b.change(0); !errors.Is(err, gpu.ErrResetRequired) || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v, want what nvidia-smi said", err)
	}
	b.setPending(0)
	b.Modes.note(b.name(0), true)
	b.wants[0] = false
	if err := b.change(0); !errors.Is(err, gpu.ErrResetRequired) || !strings.Contains(err.Error(), "is still pending") {
		t.Errorf("got %v, want that the mode is pending", err)
	}
	b.wantMode(0, gpuState{Pending: true, Left: true})
	must(t, b.Modes.write(&records.ModeChange{Format: 1, BootID: bootNow, GPU: b.name(1), UUID: b.session.Node().GPUs[1].UUID, Persistence: true}))
	wantError(t, b.change(1), "it is still off")
	b.wantMode(1, gpuState{Left: true})
}

// rereadHardware counts how often GPUs are read again.
type rereadHardware struct {
	modeHardware
	reread *int
}

func (r rereadHardware) Retake(ctx context.Context, pci gpu.PCIAddress) error {
	*r.reread++
	return r.modeHardware.Retake(ctx, pci)
}

// otherTool reports a mode that the plugin does not know of.
type otherTool struct{ simTool }

func (o otherTool) Query(ctx context.Context, pci gpu.PCIAddress) (smi.State, error) {
	st, err := o.simTool.Query(ctx, pci)
	st.Current, st.Pending = true, true
	return st, err
}

// A GPU that came to be in the other mode is read again, and its mode is not set to what was known of it.
func TestModes_LeftInOtherMode(t *testing.T) {
	b := newModeBed(t)
	reread := 0
	b.SetHardware(rereadHardware{modeHardware{b.session, func() []bool { return b.wants }}, &reread}, b.specs)
	b.Modes.Tool = otherTool{simTool{root: b.root}}
	b.Modes.note(b.name(0), true)
	must(t, b.change(0))
	if reread != 1 {
		t.Errorf("the GPU was read %d times, want once", reread)
	}
	b.wantMode(0, outOfMIG)
}

// Nobody waits for the lock of a GPU to set time slices that no claim has.
func TestRecover_LockedGPU(t *testing.T) {
	b := newBed(t)
	held, err := b.Ledger.lockFor(t.Context(), "", []string{gpuName(1)})
	must(t, err)
	defer held.Release()
	b.serve(testDriver, 1, "stray")
	b.Ledger.changing.Store(gpuName(1), true)
	b.Shares.restored.Store(nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // who waits for a lock gives up at once
	b.Shares.recover(ctx, b.backend.Load())
	if b.Shares.restored.Load() == nil {
		t.Error("recovery waited for the lock of a GPU without time slices")
	}
}
