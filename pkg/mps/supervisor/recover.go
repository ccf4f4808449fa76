// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/nvml"
)

// corruptSuffix marks records that were set aside.
const corruptSuffix = ".corrupt"

// Recover takes up what an earlier life left: it locks every GPU of which there is something, and goes on with them one
// beside the other while new requests wait only for the GPU they are of.
func (s *Supervisor) Recover(ctx context.Context) error {
	s.reports.load(ctx)
	devices, err := s.found()
	if err != nil {
		return fmt.Errorf("look for what an earlier supervisor left: %w", err)
	}
	for _, device := range devices {
		b := s.board(device)
		if err := b.lock(ctx); err != nil {
			return err
		}
		s.wg.Go(func() {
			defer b.unlock()
			b.recover(s.work(ctx))
		})
	}
	return nil
}

// found lists the GPUs that have a record or a folder, sorted.
func (s *Supervisor) found() ([]string, error) {
	var devices []string
	for _, dir := range []string{s.config.Dir, filepath.Join(s.config.Dir, stateDir)} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			device := strings.TrimSuffix(e.Name(), recordSuffix)
			if _, err := checkDevice(device); err == nil {
				devices = append(devices, device)
			}
		}
	}
	slices.Sort(devices)
	return slices.Compact(devices), nil
}

// recover brings one GPU to where its daemon runs and its claims have it, or nothing is left.
func (b *board) recover(ctx context.Context) {
	logger := klog.FromContext(ctx)
	b.record = b.read(ctx)
	switch r := b.record; {
	case r.Boot != b.s.boot:
		// Neither the daemon nor the compute mode has outlived the reboot.
		logger.Info("Dropping what an earlier boot left", "gpu", b.device, "claims", r.Claims)
		r.PreviousMode, r.Daemon, r.Boot = nil, nil, b.s.boot
	case r.Phase == running:
		if err := b.adopt(ctx); err != nil {
			b.noteLoss(ctx, err.Error())
			b.restartLater(ctx)
		}
		return
	case r.Phase == starting && len(r.Lost) > 0:
		logger.Info("Going on with the restart of an MPS control daemon", "gpu", b.device, "claims", r.Claims)
		b.show()
		b.restartLater(ctx)
		return
	default:
		logger.Info("Undoing what an earlier supervisor did not finish", "gpu", b.device, "phase", r.Phase, "claims", r.Claims)
	}
	if err := b.dismantle(ctx); err != nil {
		logger.Error(err, "Could not clean up after MPS; trying again", "gpu", b.device, "every", cleanUpEvery)
	}
}

// read gives the record of a GPU, or one that says to undo whatever there is.
func (b *board) read(ctx context.Context) *record {
	data, err := readFile(b.paths.record, maxRecord)
	if err == nil {
		var r *record
		if r, err = decodeRecord(data, b.device); err == nil {
			return r
		}
	}
	pci, _ := checkDevice(b.device) // found has checked it
	unknown := &record{Version: recordVersion, Boot: b.s.boot, Device: b.device, PCI: pci.String(), Phase: stopping}
	if errors.Is(err, fs.ErrNotExist) {
		return unknown // folders only: the record goes last
	}
	if b.s.config.ComputeMode == ExclusiveMode {
		mode := nvml.ComputeModeDefault // what it was is not known, but this is what nearly all GPUs have
		unknown.PreviousMode = &mode
	}
	aside := b.paths.record + corruptSuffix
	klog.FromContext(ctx).Error(errors.Join(err, os.Rename(b.paths.record, aside)),
		"Setting aside the record of a GPU; its MPS daemon is ended and its claims have lost it", "gpu", b.device, "to", aside)
	return unknown
}

// adopt takes over a daemon that an earlier life started, if it lives and answers.
func (b *board) adopt(ctx context.Context) error {
	process, err := b.s.on.Daemons.Adopt(*b.record.Daemon)
	if err != nil {
		return fmt.Errorf("it did not outlive the supervisor: %w", err)
	}
	b.process = process
	ask, cancel := context.WithTimeout(ctx, b.s.config.StartTimeout)
	defer cancel()
	err = b.waitReady(ask)
	if err == nil {
		err = b.letClientsIn() // an earlier release showed them all of the pipes
	}
	if err != nil {
		b.process = nil
		process.Forget()
		return err
	}
	b.running(ctx)
	klog.FromContext(ctx).Info("Adopted an MPS control daemon", "gpu", b.device, "pid", process.ID().PID,
		"generation", b.record.Generation, "claims", b.record.Claims)
	return nil
}
