// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/release"
)

// The schedulers, by the name that pods select them with.
const (
	defaultScheduler = "default-scheduler"
	cleaveScheduler  = "cleave-scheduler"
)

// scheduler is one that runs.
type scheduler struct {
	name    string
	program *process.Program
}

// syncTimeout bounds a scheduler's start with all objects of the cluster.
const syncTimeout = 5 * time.Minute

// requestsPerSecond is a scheduler's limit, which it does not reach: the usual one, of 50, would be measured, not the scheduler.
const requestsPerSecond = 5000

// start starts a scheduler and waits until it has read the cluster.
func (b *bench) start(ctx context.Context, name string) (*scheduler, error) {
	path, config := b.cluster.Scheduler(), fmt.Appendf(nil, `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %q, qps: %[2]d, burst: %[2]d}
`, b.cluster.Kubeconfig(), requestsPerSecond)
	if name == cleaveScheduler {
		var err error
		if config, err = release.SchedulerConfig(b.source, b.cluster.Kubeconfig(), requestsPerSecond, nil); err != nil {
			return nil, err
		}
		path = filepath.Join(b.source, "bin", cleaveScheduler)
	}
	file := filepath.Join(b.dir, name+".yaml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration of %s: %w", name, err)
	}
	cmd := exec.Command(path, "--config="+file)
	cmd.Dir, cmd.Env = "/", append(os.Environ(), b.cluster.Environment()...)
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	program, _, err := release.RunScheduler(ctx, cmd, filepath.Join(b.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	return &scheduler{name: name, program: program}, nil
}

func (s *scheduler) stop() error { return s.program.End(syscall.SIGKILL) }
