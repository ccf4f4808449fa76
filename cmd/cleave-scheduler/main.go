// SPDX-License-Identifier: Apache-2.0

// cleave-scheduler is kube-scheduler with the plugin GPUPacking (pkg/scheduler/gpupacking), and with CandidateDynamicResources,
// which then replaces DynamicResources. Both are off unless a profile of its configuration enables them.
//
// It is a separate module, because it depends on k8s.io/kubernetes, which cleave avoids.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // the log format json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of the client and its queues
	_ "k8s.io/component-base/metrics/prometheus/version"  // the metric of the version
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/cleave-dra/cleave/pkg/scheduler/gpupacking"
)

func main() {
	command := app.NewSchedulerCommand(
		app.WithPlugin(gpupacking.Name, gpupacking.Factory()),
		app.WithPlugin(candidateResources, newCandidatePlugin))
	command.Use = "cleave-scheduler"
	os.Exit(cli.Run(command))
}
