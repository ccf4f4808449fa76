// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

// errInvalid is wrapped by errors that a retry cannot fix.
var errInvalid = errors.New("invalid request")

// errConflict is wrapped by errors about conflicts with other claims.
var errConflict = errors.New("conflict")

// cleanUpEvery is the interval of retrying a failed cleanup, such as the compute mode of a GPU whose driver was not loaded.
const cleanUpEvery = 30 * time.Second

// migRecheck is the interval of checking a GPU in MIG mode, which may last for months: a check opens it, and Retain asks when the
// whole GPU is needed.
const migRecheck = 10 * time.Minute

// Supervisor runs the MPS daemons of a node.
type Supervisor struct {
	config  Config
	on      Host
	boot    string
	reports *reports
	records *store.Directory[string, record]

	// life ends when the supervisor stops, and wg waits for its remaining work.
	life context.Context // work continues after its caller has gone
	wg   sync.WaitGroup

	mu   sync.Mutex
	gpus map[string]*gpuState
}

// New returns a supervisor whose work ends with life. Call Recover next.
func New(life context.Context, config Config, on Host, boot string) *Supervisor {
	return &Supervisor{
		config: config, on: on, boot: boot, life: life, gpus: map[string]*gpuState{},
		reports: newReports(on.Disk, config.Dir, boot),
		records: store.At[string](on.Disk, filepath.Join(config.Dir, stateDir), recordFormat),
	}
}

// Wait waits, after the end of life, for all work to end.
func (s *Supervisor) Wait() { s.wg.Wait() }

// Ensure lets a claim use the daemon of a GPU and starts it if none runs. A start continues when ctx ends.
func (s *Supervisor) Ensure(ctx context.Context, r mps.Request) (mps.Endpoint, error) {
	if err := checkRequest(r); err != nil {
		return mps.Endpoint{}, fmt.Errorf("%w: %w", errInvalid, err)
	}
	g := s.gpu(r.Device)
	if err := g.lock(ctx); err != nil {
		return mps.Endpoint{}, err
	}
	defer g.unlock()
	return g.ensure(s.work(ctx), r)
}

// Release removes a claim from a GPU, and MPS after the last one.
func (s *Supervisor) Release(ctx context.Context, device string, claim types.UID) error {
	if err := checkClaim(claim); err != nil {
		return fmt.Errorf("%w: %w", errInvalid, err)
	}
	return s.with(ctx, device, func(ctx context.Context, g *gpuState) error {
		return g.keep(ctx, func(c types.UID) bool { return c != claim })
	})
}

// Retain removes all but the given claims of an owner from a GPU, and restores the compute mode after a reload of the driver.
// Claims of other owners stay.
func (s *Supervisor) Retain(ctx context.Context, device, owner string, claims []types.UID) error {
	if err := checkOwner(owner); err != nil {
		return fmt.Errorf("%w: %w", errInvalid, err)
	}
	return s.with(ctx, device, func(ctx context.Context, g *gpuState) error {
		if err := g.keep(ctx, func(c types.UID) bool { return g.record.Owners[c] != owner || slices.Contains(claims, c) }); err != nil {
			return err
		}
		return g.holdComputeMode(ctx)
	})
}

// with calls a function with the state of a GPU, if there is one.
func (s *Supervisor) with(ctx context.Context, device string, do func(context.Context, *gpuState) error) error {
	if _, err := checkDevice(device); err != nil {
		return fmt.Errorf("%w: %w", errInvalid, err)
	}
	s.mu.Lock()
	g := s.gpus[device]
	s.mu.Unlock()
	if g == nil {
		return nil // nothing was ever started
	}
	if err := g.lock(ctx); err != nil {
		return err
	}
	defer g.unlock()
	if g.record == nil {
		return nil
	}
	return do(s.work(ctx), g)
}

// Status reports the state of all GPUs without blocking.
func (s *Supervisor) Status() *mps.Status {
	status := &mps.Status{Version: s.config.Version}
	for _, g := range s.all() {
		if view := g.view.Load(); view != nil {
			status.GPUs = append(status.GPUs, *view)
		}
	}
	return status
}

// gpu is the state of a GPU, which is created if need be.
func (s *Supervisor) gpu(device string) *gpuState {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gpus[device]
	if g == nil {
		g = &gpuState{s: s, daemon: s.daemon(device), device: device, turn: make(chan struct{}, 1)}
		s.gpus[device] = g
	}
	return g
}

func (s *Supervisor) daemon(device string) daemon {
	return daemon{Daemon: Daemon{GPU: device, paths: pathsOf(s.config.Dir, device)}, on: &s.on, config: &s.config}
}

// computeMode is that of a record's GPU. Partitions have none: "Setting compute mode to EXCLUSIVE_PROCESS is not supported on a
// MIG-enabled device" (nvidia-smi, NVIDIA/go-nvml#61), and a server sees nothing but its partition.
func (s *Supervisor) computeMode(r *record) computeMode {
	return computeMode{hardware: s.on.Hardware, keep: s.config.ComputeMode == KeepMode || isPartition(r.Device), record: r}
}

// all states in order of device name.
func (s *Supervisor) all() []*gpuState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.gpus), func(a, b *gpuState) int { return strings.Compare(a.device, b.device) })
}

// work is the life of the supervisor with the logger of a caller.
func (s *Supervisor) work(ctx context.Context) context.Context {
	return klog.NewContext(s.life, klog.FromContext(ctx))
}

// CleanUp retries failed cleanups, and replaces faulty servers, until life ends.
func (s *Supervisor) CleanUp() {
	tick := time.NewTicker(cleanUpEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.life.Done():
			return
		case <-tick.C:
		}
		for _, g := range s.all() {
			s.cleanUp(g)
		}
	}
}

// cleanUp cleans up one GPU, or looks after its server. A locked GPU, as while the driver hangs, must not block the others.
func (s *Supervisor) cleanUp(g *gpuState) {
	ctx, cancel := context.WithTimeout(s.life, cleanUpEvery)
	defer cancel()
	if g.lock(ctx) != nil {
		return
	}
	defer g.unlock()
	waits := !g.waits.IsZero() && time.Since(g.waits) < migRecheck
	switch {
	case g.record == nil:
		return
	case len(g.record.Claims) > 0:
		s.replaceFaulty(g)
		return
	case waits:
		return
	}
	if err := g.dismantle(s.life); err != nil {
		klog.FromContext(s.life).Error(err, "MPS cleanup failed", "gpu", g.device)
	}
}
