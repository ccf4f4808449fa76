// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy"
)

// notes explain why a GPU does not offer something, and how an admin changes that.
func notes(g *gpu.GPU, offer *policy.Offer) []string {
	var notes []string
	add := func(what, why string) {
		if why != "" {
			notes = append(notes, what+": "+why)
		}
	}
	whole := offer.Whole || offer.TimeSlice != nil || offer.MPS != nil
	switch {
	case offer.Excluded:
		add("nothing offered", "the policy excludes it")
	case offer.Partitions != nil && g.MIG.Capable && len(g.MIG.Profiles) == 0:
		add("no partitions", "the driver reports no placements")
	case offer.Partitions != nil && g.MIG.NeedsReset && g.MIG.Capable && !g.MIG.Enabled:
		add("MIG mode is off", "for partitions, "+gpu.SwitchMIG("<GPU>", true))
	case whole && g.MIG.NeedsReset && g.MIG.Enabled:
		add("MIG mode is on", "for a whole or shared GPU, "+gpu.SwitchMIG("<GPU>", false))
	}
	add("no partitions", offer.NoPartitions)
	add("not shared by time slices", offer.NoTimeSlice)
	add("not shared by MPS", offer.NoMPS)
	return notes
}
