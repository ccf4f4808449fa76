// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/driver/nvml"
)

// Recover resumes the work of an earlier supervisor: it locks every GPU with leftover state and handles them concurrently, while
// new requests wait only for their own GPU.
func (s *Supervisor) Recover(ctx context.Context) error {
	s.reports.load(ctx)
	devices, err := s.found()
	if err != nil {
		return fmt.Errorf("look for what an earlier supervisor left: %w", err)
	}
	for _, device := range devices {
		g := s.gpu(device)
		if err := g.lock(ctx); err != nil {
			return err
		}
		s.wg.Go(func() {
			defer g.unlock()
			g.recover(s.work(ctx))
		})
	}
	return nil
}

// found lists the GPUs that have a record or a directory, sorted.
func (s *Supervisor) found() ([]string, error) {
	devices, err := s.records.Names()
	if err != nil {
		return nil, err
	}
	entries, err := s.on.Disk.ReadDir(s.config.Dir)
	if err != nil {
		return nil, err
	}
	for _, name := range entries {
		if _, err := checkDevice(name); err == nil {
			devices = append(devices, name)
		}
	}
	slices.Sort(devices)
	return slices.Compact(devices), nil
}

// recover brings one GPU to a state where its daemon serves its claims, or removes MPS from it.
func (g *gpuState) recover(ctx context.Context) {
	logger := klog.FromContext(ctx)
	g.record = g.read(ctx)
	g.daemon.UUID = g.record.UUID
	switch r := g.record; {
	case r.Boot != g.s.boot:
		// Neither the daemon nor the compute mode has survived the reboot.
		logger.Info("Removing the MPS state of an earlier boot", "gpu", g.device, "claims", r.Claims)
		r.PreviousMode, r.Daemon, r.Boot = nil, nil, g.s.boot
	case r.Phase == running:
		if err := g.adopt(ctx); err != nil {
			g.noteLoss(ctx, err.Error())
			g.restartLater(ctx)
		}
		return
	case r.Phase == starting && len(r.Lost) > 0:
		logger.Info("Continuing the restart of an MPS control daemon", "gpu", g.device, "claims", r.Claims)
		g.show()
		g.restartLater(ctx)
		return
	default:
		logger.Info("Cleaning up after an earlier supervisor", "gpu", g.device, "phase", r.Phase, "claims", r.Claims)
	}
	if err := g.dismantle(ctx); err != nil {
		logger.Error(err, "MPS cleanup failed; trying again", "gpu", g.device, "every", cleanUpEvery)
	}
}

// read returns the record of a GPU; if it is lost, one that undoes everything.
func (g *gpuState) read(ctx context.Context) *record {
	r, err := g.s.records.Read(g.device)
	if r != nil {
		return r
	}
	pci, _ := checkDevice(g.device) // found has checked it
	unknown := &record{Version: recordVersion, Boot: g.s.boot, Device: g.device, PCI: pci.String(), Phase: stopping}
	if g.s.config.ComputeMode == ExclusiveMode && !isPartition(g.device) {
		mode := nvml.ComputeModeDefault                    // the previous one is unknown, but nearly all GPUs have this one
		unknown.PreviousMode, unknown.Closed = &mode, true // nor is it known whether the GPU was closed
	}
	if err == nil {
		return unknown // the record, created first and deleted last, was lost, as after being set aside on a full disk
	}
	aside, errAside := g.s.records.SetAside(g.device)
	klog.FromContext(ctx).Error(errors.Join(err, errAside),
		"Set aside the record of a GPU; its MPS daemon is stopped and its claims have lost it", "gpu", g.device, "movedTo", aside)
	return unknown
}

// adopt takes over a daemon that an earlier life started, if it lives and answers.
func (g *gpuState) adopt(ctx context.Context) error {
	if err := g.daemon.adopt(ctx, *g.record.Daemon); err != nil {
		return err
	}
	g.running(ctx)
	klog.FromContext(ctx).Info("Adopted an MPS control daemon", "gpu", g.device, "pid", g.daemon.process.ID().PID,
		"generation", g.record.Generation, "claims", g.record.Claims)
	return nil
}
