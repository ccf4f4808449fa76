// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/release"
)

// The schedulers that pods name: the cluster's kube-scheduler, and cleave-scheduler beside it.
const (
	kubeScheduler   = corev1.DefaultSchedulerName
	cleaveScheduler = "cleave-scheduler"
)

// scheduler is cleave-scheduler as a process, with the configuration that the chart gives it.
type scheduler struct {
	binary, config, log string
	port                int
	process             *process.Program
}

// startScheduler starts cleave-scheduler beside the cluster's own. Its log is beside the history.
func startScheduler(ctx context.Context, b *bed, opts Options) (*scheduler, error) {
	rendered, err := b.Helm(ctx, b.values()+"scheduler: {enabled: true}\n", "template", "cleave", release.Chart(b.source),
		"--show-only", "templates/scheduler.yaml", "--kube-version", b.cluster.Version())
	if err != nil {
		return nil, err
	}
	config, err := schedulerConfig(rendered, b.cluster.Kubeconfig())
	if err != nil {
		return nil, err
	}
	port, err := cluster.FreePort(ctx, "127.0.0.1")
	if err != nil {
		return nil, err
	}
	beside := strings.TrimSuffix(opts.History, filepath.Ext(opts.History))
	s := &scheduler{
		binary: filepath.Join(b.source, "bin", cleaveScheduler), config: beside + "-scheduler.yaml", log: beside + "-scheduler.log", port: port,
	}
	if err := os.WriteFile(s.config, config, 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration of %s: %w", cleaveScheduler, err)
	}
	if err := os.Remove(s.log); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the log of the soak before: %w", err)
	}
	return s, s.start(ctx)
}

// schedulerConfig is the configuration in the chart's ConfigMap for one scheduler outside of the cluster.
func schedulerConfig(rendered, kubeconfig string) ([]byte, error) {
	for document := range strings.SplitSeq(rendered, "\n---\n") {
		var found corev1.ConfigMap
		if err := yaml.Unmarshal([]byte(document), &found); err != nil {
			return nil, fmt.Errorf("read the chart's configuration of %s: %w", cleaveScheduler, err)
		}
		if found.Kind != "ConfigMap" {
			continue
		}
		var config map[string]any
		if err := yaml.Unmarshal([]byte(found.Data["config.yaml"]), &config); err != nil {
			return nil, fmt.Errorf("read the chart's configuration of %s: %w", cleaveScheduler, err)
		}
		connection, ok := config["clientConnection"].(map[string]any)
		if !ok {
			return nil, fmt.Errorf("the chart's configuration of %s has no clientConnection", cleaveScheduler)
		}
		connection["kubeconfig"] = kubeconfig
		config["leaderElection"] = map[string]any{"leaderElect": false} // it must not wait for the lease of one that was killed
		return yaml.Marshal(config)
	}
	return nil, fmt.Errorf("the chart has no configuration of %s", cleaveScheduler)
}

// start starts the process and waits until it has read the cluster.
func (s *scheduler) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	var err error
	s.process, err = process.Start(exec.Command(s.binary, "--config="+s.config, "--bind-address=127.0.0.1",
		"--secure-port="+strconv.Itoa(s.port), "--cert-dir="+filepath.Join(filepath.Dir(s.config), "soak-scheduler-certificates"), "-v=3"), s.log)
	if err != nil {
		return err
	}
	return s.process.WaitAnswer(ctx, "https://"+net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))+"/readyz")
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
