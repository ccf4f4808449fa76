// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
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
	case offer.WantsMIG != nil && *offer.WantsMIG != g.MIG.Enabled:
		add("MIG mode is "+map[bool]string{true: "on", false: "off"}[g.MIG.Enabled],
			"it is changed, with a reset, once no claim and no process uses the GPU (docs/mig.md, A100 and A30)")
	case offer.Partitions != nil && g.MIG.NeedsReset && g.MIG.Capable && !g.MIG.Enabled:
		add("MIG mode is off", "for partitions, "+gpu.SwitchMIG(g, "<GPU>", true))
	case whole && g.MIG.NeedsReset && g.MIG.Enabled:
		add("MIG mode is on", "for a whole or shared GPU, "+gpu.SwitchMIG(g, "<GPU>", false))
	}
	if g.Virtualization == gpu.PassThrough && g.MIG.Capable && g.MIG.NeedsReset && offer.WantsMIG == nil {
		add("passed through to this virtual machine", "the MIG mode, which changes only with a reset, is taken as it is found, as a guest "+
			"may be unable to reset the GPU")
	}
	if g.Virtualization == gpu.VGPU && offer.NoPartitions == "" && offer.Partitions == nil {
		add("a vGPU", "MIG mode and partitions are its host's; partitions that are there can be offered by mode existing")
	}
	add("no partitions", offer.NoPartitions)
	add("not shared by time slices", offer.NoTimeSlice)
	add("not shared by MPS", offer.NoMPS)
	return append(notes, offer.NotShared...)
}
