// SPDX-License-Identifier: Apache-2.0

// cleave-scheduler is kube-scheduler with the plugin GPUPacking (pkg/scheduler/gpupacking), with CandidateDynamicResources, which then
// replaces DynamicResources, and with DevicePreemption, which replaces DefaultPreemption. All are off unless a profile of its
// configuration enables them.
//
// It is a separate module, because it depends on k8s.io/kubernetes, which cleave avoids.
package main

import (
	"os"
	"sync"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // the log format json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of the client and its queues
	_ "k8s.io/component-base/metrics/prometheus/version"  // the metric of the version
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/cleave-dra/cleave/pkg/scheduler/gpupacking"
)

func main() {
	p := newPlugins()
	command := app.NewSchedulerCommand(
		app.WithPlugin(gpupacking.Name, p.shared.New),
		app.WithPlugin(candidateResources, p.newCandidates),
		app.WithPlugin(devicePreemption, p.newPreemption))
	command.Use = "cleave-scheduler"
	os.Exit(cli.Run(command))
}

// plugins makes the plugins of profiles, which know each other.
type plugins struct {
	shared *gpupacking.Shared
	mutex  sync.Mutex
	// candidates are the plugins that allocate, by the name of the profile.
	candidates map[string]*candidatePlugin
}

func newPlugins() *plugins {
	return &plugins{shared: &gpupacking.Shared{}, candidates: map[string]*candidatePlugin{}}
}

// allocator is the plugin that allocates in a profile, nil where that is kube-scheduler's own.
func (p *plugins) allocator(profile string) *candidatePlugin {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.candidates[profile]
}
