// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// The reason of Events about an unavailable MPS supervisor.
const reasonSupervisorAway = "MPSSupervisorAway" // the MPS supervisor does not answer, and claims have shares

// offersMPS reports whether devices of type mps are offered. After the supervisor's first answer they stay, tainted while it is
// unavailable, because the scheduler forgets the consumption of devices that are no longer published.
func (p *Plan) offersMPS(o *Observed) bool {
	return p.Memory.MPSOffered || o.MPS == nil || slices.ContainsFunc(o.Allocations, func(r *records.Record) bool {
		return slices.ContainsFunc(r.Shares(gpu.MPS), func(d *records.Device) bool { return !d.Share.Exclusive })
	})
}

// considerMPS remembers whether MPS is offered, and reports when the supervisor becomes unavailable or available.
func (p *Plan) considerMPS(o *Observed) {
	m := &p.Memory
	away := o.MPS != nil
	changed := m.MPSKnown && away != m.MPSAway
	m.MPSOffered, m.MPSKnown, m.MPSAway = p.offersMPS(o), true, away
	switch {
	case !changed:
	case !away:
		p.report(Report{Log: "The MPS supervisor answers"})
	default:
		reportSupervisorAway(p, o)
	}
}

// reportSupervisorAway reports that the supervisor does not answer, and the affected claims.
func reportSupervisorAway(p *Plan, o *Observed) {
	var claims []string
	for _, r := range o.Records {
		if len(r.Shares(gpu.MPS)) > 0 && r.State == records.Prepared {
			claims = append(claims, r.Claim.String())
		}
	}
	r := Report{Log: "The MPS supervisor does not answer", Err: o.MPS, Values: []any{"claims", claims}}
	if len(claims) > 0 {
		r.Warning, r.Reason = true, reasonSupervisorAway
		r.Message = fmt.Sprintf("%v. Running MPS clients are unaffected, but failed servers will not restart until the supervisor returns: %s",
			o.MPS, strings.Join(claims, ", "))
	}
	p.report(r)
}
