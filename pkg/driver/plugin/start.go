// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/driver/cluster"
)

// Failures of the start that may be temporary are retried in the process: a container that exits is restarted only after up to five
// minutes (CrashLoopBackOff), and only its log shows why. They are: the plugin's directory cannot be created
// or written yet, the kubelet's registration directory is missing, a boot ID cannot be read, or the
// previous plugin still has the port. The driver, the API server, the Node object, the policy and other drivers of the same name are
// waited for where they are needed. Permanent failures end the program: invalid flags with code 2, see
// Config.Validate, and an invalid kubeconfig with code 1.

// The reason of Events about a start that is retried.
const reasonStart = "StartDelayed" // the plugin cannot start yet, or serves no metrics and health yet; retried

// connect creates the API clients; it does not connect yet.
func (s *service) connect(ctx context.Context) error {
	restConfig, err := restConfig(s.config)
	if err != nil {
		return err
	}
	if s.client, err = kubernetes.NewForConfig(restConfig); err != nil {
		return fmt.Errorf("create a client for the API server: %w", err)
	}
	s.events = cluster.NewEvents(ctx, s.client, s.config.DriverName, s.config.NodeName)
	s.claimEvents = newClaimEvents(cluster.Claims{Client: s.client}, s.pods, s.events, s.metrics.failing)
	return nil
}

// persist retries a step of the start until it succeeds or ctx ends; it then returns the error of ctx. Each new reason is reported.
func (s *service) persist(ctx context.Context, step func() error) error {
	tick := time.NewTicker(s.config.DriverRetry)
	defer tick.Stop()
	reported := ""
	for {
		err := step()
		if err == nil {
			if reported != "" {
				s.ready.set(notStarted, nil)
			}
			return nil
		}
		if text := err.Error(); text != reported {
			reported = text
			klog.FromContext(ctx).Error(err, "Start delayed; retrying", "retryEvery", s.config.DriverRetry)
			s.ready.set(notStarted, err)
			s.events.Warn(reasonStart, fmt.Sprintf("The plugin cannot start yet: %v. It retries every %s.", err, s.config.DriverRetry))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
