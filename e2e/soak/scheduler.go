// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/release"
)

// The schedulers that pods name: the cluster's kube-scheduler, and cleave-scheduler beside it.
const (
	kubeScheduler   = corev1.DefaultSchedulerName
	cleaveScheduler = "cleave-scheduler"
)

// scheduler is cleave-scheduler as a process, with the configuration of the chart.
type scheduler struct {
	binary, config, log string
	process             *process.Program
}

// startScheduler starts cleave-scheduler beside the cluster's own. Its log is beside the history.
func startScheduler(ctx context.Context, b *bed, opts Options) (*scheduler, error) {
	config, err := release.SchedulerConfig(b.source, b.cluster.Kubeconfig(), 500, nil)
	if err != nil {
		return nil, err
	}
	beside := strings.TrimSuffix(opts.History, filepath.Ext(opts.History))
	s := &scheduler{
		binary: filepath.Join(b.source, "bin", cleaveScheduler), config: beside + "-scheduler.yaml", log: beside + "-scheduler.log",
	}
	if err := os.WriteFile(s.config, config, 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration of %s: %w", cleaveScheduler, err)
	}
	if err := os.Remove(s.log); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the log of the soak before: %w", err)
	}
	return s, s.start(ctx)
}

// start starts the process and waits until it has read the cluster.
func (s *scheduler) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	p, _, err := release.RunScheduler(ctx, exec.Command(s.binary, "--config="+s.config, "-v=3"), s.log)
	if err == nil {
		s.process = p
	}
	return err
}

// stop ends the process, if there is one.
func (s *scheduler) stop() error {
	if s == nil {
		return nil
	}
	return s.process.End(syscall.SIGKILL)
}

// killScheduler kills cleave-scheduler, and starts it again.
func (f *faults) killScheduler(ctx context.Context, _ Fault) (time.Time, error) {
	from := time.Now()
	if err := f.bed.scheduler.stop(); err != nil {
		return from, err
	}
	return from, f.bed.scheduler.start(ctx)
}

// stopScheduler stops cleave-scheduler for a while.
func (f *faults) stopScheduler(ctx context.Context, fault Fault) (time.Time, error) {
	pid := f.bed.scheduler.process.PID()
	err := errors.Join(syscall.Kill(pid, syscall.SIGSTOP), f.last(ctx, fault), syscall.Kill(pid, syscall.SIGCONT))
	return time.Now(), err
}
