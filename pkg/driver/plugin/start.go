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

// What can fail at the start and may pass is tried again inside: a container that ends is started again only after up to five
// minutes (CrashLoopBackOff), and only its log shows why. These are the plugin's directory that cannot be made
// or written yet, the kubelet's registration directory that is missing, a boot ID that cannot be read, and a port that the
// previous plugin still has. The driver, the API server, the Node object, the policy and other drivers of the same name are
// waited for where they are needed. What cannot pass ends the program: invalid flags with code 2, see
// Config.Validate, and a kubeconfig that cannot be used with code 1.

// reasonStart is the reason of Events about a start that is tried again.
const reasonStart = "StartDelayed"

// connect creates what talks to the API server; it does not connect yet.
func (s *service) connect(ctx context.Context) error {
	restConfig, err := restConfig(s.config)
	if err != nil {
		return err
	}
	if s.client, err = kubernetes.NewForConfig(restConfig); err != nil {
		return fmt.Errorf("create a client for the API server: %w", err)
	}
	s.events = cluster.NewEvents(ctx, s.client, s.config.DriverName, s.config.NodeName)
	s.claimEvents = newClaimEvents(cluster.Claims{Client: s.client}, s.pods, s.events)
	return nil
}

// persist takes a step of the start until it works or ctx ends, whose error it returns. Each new reason is reported.
func (s *service) persist(ctx context.Context, step func() error) error {
	tick := time.NewTicker(s.config.DriverRetry)
	defer tick.Stop()
	reported := ""
	for {
		err := step()
		if err == nil {
			if reported != "" {
				s.ready.started(nil)
			}
			return nil
		}
		if text := err.Error(); text != reported {
			reported = text
			klog.FromContext(ctx).Error(err, "Start delayed; retrying", "retryEvery", s.config.DriverRetry)
			s.ready.started(err)
			s.events.Warn(reasonStart, fmt.Sprintf("The plugin cannot start yet: %v. It tries again every %s.", err, s.config.DriverRetry))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
