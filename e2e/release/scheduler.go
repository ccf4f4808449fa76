// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/process"
)

// RunScheduler starts the command of a scheduler, with certificates beside its log, and returns it with its port once it has read the
// cluster. One that has not when ctx ends is killed.
func RunScheduler(ctx context.Context, cmd *exec.Cmd, log string) (p *process.Program, port int, err error) {
	if port, err = cluster.FreePort(ctx, "127.0.0.1"); err != nil {
		return nil, 0, err
	}
	cmd.Args = append(cmd.Args, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--cert-dir="+log+"-certificates")
	if p, err = process.Start(cmd, log); err != nil {
		return nil, 0, err
	}
	if err := p.WaitAnswer(ctx, fmt.Sprintf("https://127.0.0.1:%d/readyz", port)); err != nil {
		return nil, 0, errors.Join(err, p.End(syscall.SIGKILL))
	}
	return p, port, nil
}

// SchedulerConfig is the configuration of deployments/kubeadm, which is the chart's, for one cleave-scheduler beside the cluster's own: it
// needs no lease, and may make so many requests in a second. Plugins have arguments in place of those of their names there.
func SchedulerConfig(source, kubeconfig string, requests int, arguments map[string]any) ([]byte, error) {
	path := filepath.Join(source, "deployments", "kubeadm", "cleave-scheduler.yaml")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the configuration of cleave-scheduler: %w", err)
	}
	var config struct {
		APIVersion       string           `json:"apiVersion"`
		Kind             string           `json:"kind"`
		LeaderElection   map[string]any   `json:"leaderElection"`
		ClientConnection map[string]any   `json:"clientConnection"`
		Profiles         []map[string]any `json:"profiles"`
	}
	if err := yaml.UnmarshalStrict(data, &config); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	config.LeaderElection = map[string]any{"leaderElect": false}
	config.ClientConnection = map[string]any{"kubeconfig": kubeconfig, "qps": requests, "burst": requests}
	config.Profiles = config.Profiles[len(config.Profiles)-1:] // of pods that name it
	plugins, _ := config.Profiles[0]["pluginConfig"].([]any)
	for _, p := range plugins {
		if plugin, ok := p.(map[string]any); ok && arguments[fmt.Sprint(plugin["name"])] != nil {
			plugin["args"] = arguments[fmt.Sprint(plugin["name"])]
		}
	}
	return yaml.Marshal(config)
}
