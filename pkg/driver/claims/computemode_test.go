// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// A GPU that MPS had is given on only when any number of processes may use it.
func TestPrepare_ComputeMode(t *testing.T) {
	tests := map[string]struct {
		mode gpu.ComputeMode
		part part
		err  error // of the call
		// supervisor says what the MPS supervisor does when it is asked: nothing, if false
		restores bool
		away     error    // of the supervisor
		want     []string // of the error; none if it is prepared
	}{
		"whole GPU":                          {part: wholeOf(0)},
		"whole GPU, no compute modes":        {part: wholeOf(0), err: gpu.ErrNotSupported},
		"whole GPU, unreadable":              {part: wholeOf(0), err: errDown, want: []string{errDown.Error()}},
		"whole GPU, left exclusive":          {mode: gpu.ComputeExclusive, part: wholeOf(0), restores: true},
		"time slice, left exclusive":         {mode: gpu.ComputeExclusive, part: sliceOf(0, 10), restores: true},
		"whole GPU, exclusive by others":     {mode: gpu.ComputeExclusive, part: wholeOf(0), want: []string{gpuUUID(0), "EXCLUSIVE_PROCESS", "nvidia-smi -i " + gpuUUID(0) + " -c DEFAULT"}},
		"time slice, exclusive by others":    {mode: gpu.ComputeExclusive, part: sliceOf(0, 10), want: []string{"EXCLUSIVE_PROCESS"}},
		"whole GPU, supervisor away":         {mode: gpu.ComputeExclusive, part: wholeOf(0), away: errDown, want: []string{errDown.Error()}},
		"whole GPU, left prohibited":         {mode: gpu.ComputeProhibited, part: wholeOf(0), restores: true},
		"whole GPU, prohibited":              {mode: gpu.ComputeProhibited, part: wholeOf(0), want: []string{"PROHIBITED", "-c DEFAULT"}},
		"MPS share, whose server sets it":    {mode: gpu.ComputeExclusive, part: mpsOf(0, 10, 10)},
		"another GPU's mode is no hindrance": {mode: gpu.ComputeExclusive, part: wholeOf(1)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.hardware.modes, b.hardware.modeErr = map[string]gpu.ComputeMode{gpuName(0): tt.mode}, tt.err
			b.sharing.onRetain = func(gpuDevice string) {
				if tt.restores {
					delete(b.hardware.modes, gpuDevice)
				}
			}
			b.sharing.err = failing("before RetainMPS "+gpuName(0), tt.away)
			err := b.tryPrepare("a", tt.part)
			if len(tt.want) > 0 {
				wantError(t, err, tt.want...)
				b.want()
				return
			}
			must(t, err)
			b.sharing.err = nil
			// Prepared again it is the claim's, whatever the mode by now.
			b.hardware.modes = map[string]gpu.ComputeMode{gpuName(0): gpu.ComputeProhibited}
			b.prepare("a", tt.part)
		})
	}
}

func TestPrepare_ComputeModeCostsOneCall(t *testing.T) {
	b := newBed(t)
	b.prepare("a", wholeOf(0), wholeOf(1).of("second"))
	if b.hardware.reads != 2 {
		t.Errorf("%d reads of the compute mode for two GPUs, want one each", b.hardware.reads)
	}
}

// A GPU has the compute mode from before MIG mode again when it leaves MIG mode for a claim, whether or not the driver shows it meanwhile.
func TestPrepare_ComputeModeOutlivesMIG(t *testing.T) {
	for _, quirk := range []bool{false, true} {
		b := newSimBed(t, "hgx-h100", func(node *sim.Node) {
			must(t, node.Driver().SetQuirk(sim.QuirkModeInMIG, quirk))
			must(t, node.Device(0).Modes().SetComputeMode(int(gpu.ComputeExclusive)))
			_, err := node.Device(0).MIG().SetMIGMode(true)
			must(t, err)
		})
		b.prepare("part", b.name(0, 19, 6))
		b.unprepare("part")
		_, err := b.Prepare(t.Context(), deviceClaim("whole", b.session.Node().GPUs[0].PCI.DeviceName()))
		wantError(t, err, "EXCLUSIVE_PROCESS", "-c DEFAULT")
		must(t, b.node.Device(0).Modes().SetComputeMode(int(gpu.ComputeDefault)))
		b.prepare("whole", b.session.Node().GPUs[0].PCI.DeviceName())
	}
}
