// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// What a simulated GPU reports must reach a session in process, and one with the shared library through go-nvml.
func TestSimulated_Faults(t *testing.T) {
	const model = "hgx-h100"
	if os.Getenv(asModel) == model {
		node, _, shared := openBoth(t, model)
		checkTrouble(t, node, shared)
		return
	}
	t.Run("in process", func(t *testing.T) {
		b := newBed(t, model)
		checkTrouble(t, b.node, b.Session)
	})
	t.Run("shared library", func(t *testing.T) {
		needLibrary(t)
		inOwnProcess(t, model)
	})
}

func checkTrouble(t *testing.T, node *sim.Node, s *nvml.Session) {
	t.Helper()
	must(t, node.Hardware().RaiseXID(0, 13)) // before anybody watches
	events, err := s.Events(t.Context())
	must(t, err)
	defer func() {
		if err := events.Close(); err != nil {
			t.Error(err)
		}
	}()
	pci := func(i int) *gpu.PCIAddress { return &s.Node().GPUs[i].PCI }
	gi := 7
	none := uint32(0xFFFFFFFF)
	must(t, node.Hardware().RaiseXID(3, 79))
	must(t, node.Hardware().Raise(4, sim.Event{Type: sim.EventXID, Data: 94, GPUInstance: 7}))
	must(t, node.Hardware().Raise(5, sim.Event{Type: sim.EventDoubleBitECC, GPUInstance: none, ComputeInstance: none}))
	must(t, node.Hardware().Raise(6, sim.Event{Type: sim.EventGPUUnavailable, GPUInstance: none, ComputeInstance: none}))
	must(t, node.Hardware().SetRecoveryAction(7, 2))
	if got, err := s.Recovery(t.Context(), *pci(7)); got.Action != gpu.RecoveryReboot || err != nil {
		t.Errorf("recovery action: got %d, %v, want %d", got, err, gpu.RecoveryReboot)
	}
	must(t, s.SetMIG(t.Context(), *pci(0), true))
	for _, want := range []gpu.Event{
		{Kind: gpu.MIGChanged, PCI: pci(0)}, // in order of the GPUs
		{Kind: gpu.XIDReported, PCI: pci(3), XID: 79},
		{Kind: gpu.XIDReported, PCI: pci(4), XID: 94, GI: &gi},
		{Kind: gpu.DoubleBitECC, PCI: pci(5)},
		{Kind: gpu.GPUUnavailable, PCI: pci(6)},
		{Kind: gpu.RecoveryChanged, PCI: pci(7)},
	} {
		got, happened, err := events.Next(10 * time.Second)
		if diff := cmp.Diff(want, got); diff != "" || !happened || err != nil {
			t.Errorf("event %s, %t, %v (-want +got):\n%s", want, happened, err, diff)
		}
	}
	if got, happened, err := events.Next(0); happened || err != nil {
		t.Errorf("got %s, %v, want nothing more", got, err)
	}

	must(t, node.Hardware().Lose(2))
	if _, _, err := events.Next(10 * time.Second); !errors.Is(err, gpu.ErrLost) {
		t.Errorf("a lost GPU: got %v, want %v", err, gpu.ErrLost)
	}
	mustFail(t, s.VerifyGPU(t.Context(), &s.Node().GPUs[2]), gpu.ErrLost)
	second, err := s.Events(t.Context())
	must(t, err)
	must(t, node.Hardware().RaiseXID(3, 119))
	if got, happened, err := second.Next(10 * time.Second); got.XID != 119 || !happened || err != nil {
		t.Errorf("a set created while a GPU is lost: got %s, %v, want an event of another GPU", got, err)
	}
	must(t, second.Close())
	must(t, node.Faults().FailCall("nvmlDeviceGetFieldValues", sim.CodeNotSupported))
	if got, err := s.Recovery(t.Context(), *pci(7)); got.Action != gpu.RecoveryUnknown || err != nil {
		t.Errorf("an older driver: got %d, %v, want %d", got, err, gpu.RecoveryUnknown)
	}
	must(t, node.Faults().Clear(-1))
	if err := s.VerifyGPU(t.Context(), &s.Node().GPUs[2]); err != nil {
		t.Errorf("the GPU that is back: %v", err)
	}
	if got, err := s.Recovery(t.Context(), *pci(7)); got.Action != gpu.RecoveryNone || err != nil {
		t.Errorf("after all is cleared: got %d, %v, want %d", got, err, gpu.RecoveryNone)
	}
}
