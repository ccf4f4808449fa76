// SPDX-License-Identifier: Apache-2.0

package plugin

import "github.com/cleave-dra/cleave/pkg/driver/controller"

// reporter reports the control loop's decisions to metrics and readiness.
type reporter struct {
	metrics *metrics
	ready   *readiness
}

// Report reports the status of a plan.
func (r reporter) Report(s controller.Status) {
	r.metrics.policyIs(s.Policy, s.PolicyInvalid)
	if s.PolicyFailed {
		r.metrics.policyFailures.Inc()
	}
	r.metrics.conflict.Set(number(s.Conflict != nil))
	r.metrics.gpus.Set(float64(s.GPUs))
	r.metrics.notices.report(s.Notice)
	r.metrics.usage.published.Store(s.Published)
	r.ready.set(noPolicy, s.NoPolicy)
	r.ready.set(conflicting, s.Conflict)
}

// Driver reports why the driver cannot be used; nil once it can.
func (r reporter) Driver(err error) {
	r.metrics.waiting.Set(number(err != nil))
	r.ready.set(noDriver, err)
}
