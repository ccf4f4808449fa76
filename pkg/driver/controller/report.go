// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"

	"k8s.io/klog/v2"
)

// report writes a report.
func (l *Loop) report(ctx context.Context, r Report) {
	logger := klog.FromContext(ctx)
	switch {
	case r.Log == "":
	case r.Err != nil:
		logger.Error(r.Err, r.Log, r.Values...)
	default:
		logger.Info(r.Log, r.Values...)
	}
	switch {
	case r.Reason == "":
	case r.Warning:
		l.Events.Warn(r.Reason, r.Message)
	default:
		l.Events.Note(r.Reason, r.Message)
	}
}
