// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/driver/cluster"
)

// The reason of Events about DeviceClasses that were deleted.
const reasonClassesMissing = "DeviceClassesMissing" // DeviceClasses that were installed with Cleave do not exist

const (
	// classesSettle is how long DeviceClasses must be unchanged before they are reported, up to twice as long with jitter: an
	// installation, an upgrade or a removal changes one after the other, and not all nodes should write at the same moment.
	classesSettle = 5 * time.Second
	// maxNamedClasses bounds the classes listed in a message.
	maxNamedClasses = 5
)

// missingClasses reports DeviceClasses of the installation that do not exist: pods that request them stay Pending, and only an
// admin can restore them, as plugins may not write classes. All nodes see the same, so there is one Event for the cluster.
type missingClasses struct {
	// find returns the plugin's DaemonSet and the missing classes; changed has a value when they may have changed.
	find    func() (daemonSet *corev1.ObjectReference, missing []string)
	changed <-chan struct{}
	gauge   prometheus.Gauge
	// warn writes the Event, retry is the time until the next attempt.
	warn  func(ctx context.Context, daemonSet *corev1.ObjectReference, message string) error
	retry time.Duration

	// reported is the message of the last Event, written at its time.
	reported string
	written  time.Time
}

// newMissingClasses reports for a service.
func newMissingClasses(s *service) *missingClasses {
	return &missingClasses{
		find: s.cluster.MissingClasses, changed: s.cluster.ClassesChanged(), gauge: s.metrics.classesMissing, retry: s.config.DriverRetry,
		warn: func(ctx context.Context, daemonSet *corev1.ObjectReference, message string) error {
			return cluster.WarnOnce(ctx, s.client, s.config.DriverName, daemonSet, reasonClassesMissing, message)
		},
	}
}

// run reports until ctx ends.
func (m *missingClasses) run(ctx context.Context) {
	timer := time.NewTimer(wait.Jitter(classesSettle, 1))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.changed:
			timer.Reset(wait.Jitter(classesSettle, 1))
		case <-timer.C:
			next := wait.Jitter(cluster.RepeatAfter, 0.1)
			if err := m.report(ctx); err != nil {
				klog.FromContext(ctx).V(4).Info("Cannot write an Event about missing DeviceClasses; retrying", "err", err)
				next = m.retry
			}
			timer.Reset(next)
		}
	}
}

// report sets the metric, and writes one Event for each new set of missing classes, and again while they are missing.
func (m *missingClasses) report(ctx context.Context) error {
	daemonSet, missing := m.find()
	m.gauge.Set(float64(len(missing)))
	message := classesMessage(missing)
	if message != "" && (message != m.reported || time.Since(m.written) >= cluster.RepeatAfter) {
		if err := m.warn(ctx, daemonSet, message); err != nil {
			return err
		}
		m.written = time.Now()
		klog.FromContext(ctx).Info("DeviceClasses of the installation do not exist", "missing", missing)
	}
	m.reported = message
	return nil
}

// classesMessage is the text of the Event about missing classes; empty for none.
func classesMessage(missing []string) string {
	if len(missing) == 0 {
		return ""
	}
	names := strings.Join(missing[:min(len(missing), maxNamedClasses)], ", ")
	if more := len(missing) - maxNamedClasses; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("DeviceClasses that were installed with Cleave do not exist, so pods that request them stay Pending: %s. "+
		"Restore them with helm upgrade, or apply the manifests again.", names)
}
