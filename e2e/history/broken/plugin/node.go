// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/history/broken/protocol"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/driversession"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

const (
	driver = "gpu.cleave.dev"
	pool   = "node-1"
)

// node is a simulated node with one plugin, or two in a rolling update.
type node struct {
	dir          string
	steps        steps
	active, next *claims.Preparer
}

// open opens one more plugin on the node: all that it knows it reads from disk.
func (n *node) open(ctx context.Context) (*claims.Preparer, error) {
	root := filepath.Join(n.dir, "node")
	simulator, err := sim.Open(root, sim.WithTrace(&n.steps))
	if err != nil {
		return nil, err
	}
	session, err := nvml.OpenLibrary(ctx, simulated.Library(simulator), simulator.Sysfs())
	if err != nil {
		return nil, err
	}
	boot, err := store.BootID(filepath.Join(root, "proc"))
	if err != nil {
		return nil, err
	}
	disk := disk{steps: &n.steps}
	kept, err1 := records.OpenStore(disk, filepath.Join(n.dir, "claims"))
	layouts, err2 := records.OpenLayouts(disk, filepath.Join(n.dir, "layouts"))
	locks, err3 := claims.OpenLocks(filepath.Join(n.dir, "locks"))
	sessions, err4 := driversession.Open(disk, filepath.Join(n.dir, "session.json"), boot,
		os.DirFS(filepath.Join(root, "sys")), os.DirFS(filepath.Join(root, "proc")))
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	if err := sessions.Begin(nil); err != nil {
		return nil, err
	}
	specs := specs(filepath.Join(n.dir, "specs"))
	p := claims.New(claims.Options{
		Identity: claims.Identity{Driver: driver, Pool: pool}, BootID: boot,
		Store: kept, Layouts: layouts, Locks: locks, Specs: func(string) claims.SpecRemover { return specs }, Sessions: sessions,
	})
	if err := p.Load(ctx, nil); err != nil {
		return nil, err
	}
	p.SetHardware(hardware{session, policy.Apply(&v1alpha1.NodePolicy{}, session.Node(), policy.Capabilities{})}, specs)
	return p, nil
}

// hardware is an NVML session with what its GPUs offer.
type hardware struct {
	*nvml.Session
	node *policy.Node
}

func (h hardware) Node() *policy.Node { return h.node }

// specs are files of claims: no runtime reads them.
type specs string

func (s specs) path(uid types.UID) string { return filepath.Join(string(s), string(uid)) }

func (specs) DeviceID(device string) string { return driver + "/gpu=" + device }

func (s specs) PartitionsID(device string) string { return s.DeviceID(device) + "-mig" }

func (specs) ClaimID(uid types.UID, d *records.Device) string {
	return driver + "/claim=" + string(uid) + "-" + d.Device
}

func (specs) Ensure(context.Context, []string) error { return nil }

func (s specs) WriteClaim(_ context.Context, r *records.Record) error {
	return os.WriteFile(s.path(r.Claim.UID), nil, 0o600)
}

func (s specs) EnsureNodes(context.Context, *records.Record) {}

func (s specs) HasClaim(uid types.UID) bool {
	_, err := os.Lstat(s.path(uid))
	return err == nil
}

func (specs) ClaimSession(types.UID, string) string { return "" }

func (specs) Claims() ([]types.UID, error) { return nil, nil }

func (s specs) RemoveClaim(uid types.UID) error { return store.Disk{}.Remove(s.path(uid)) }

// steps counts the changes of hardware and disk, at which a request can have the process killed, or another one opened.
type steps struct {
	count, killAt, openAt int
	open                  func() error
}

func (s *steps) begin(r protocol.Request, open func() error) {
	*s = steps{killAt: r.KillAt, openAt: r.OpenAt, open: open}
}

func (s *steps) end() { *s = steps{} }

// Write is called with each call of NVML, before it has an effect.
func (s *steps) Write(call []byte) (int, error) {
	for _, change := range []string{"Create", "Destroy", "SetMigMode"} {
		if strings.Contains(string(call), change) {
			s.step()
			break
		}
	}
	return len(call), nil
}

func (s *steps) step() {
	s.count++
	if s.count == s.killAt {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	if s.count == s.openAt {
		now := *s
		*s = steps{} // the other's steps are not counted
		if err := now.open(); err != nil {
			panic(err) // the test sees that the process has ended
		}
		*s = now
	}
}

// disk is the real one, each change of which is a step.
type disk struct {
	store.Disk
	steps *steps
}

func (d disk) WriteFile(path string, data []byte) error {
	d.steps.step()
	err := d.Disk.WriteFile(path, data)
	d.steps.step()
	return err
}

func (d disk) WriteDurable(path string, data []byte) error { return d.WriteFile(path, data) }

func (d disk) Remove(path string) error {
	d.steps.step()
	err := d.Disk.Remove(path)
	d.steps.step()
	return err
}
