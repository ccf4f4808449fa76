// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// fakeSupervisor notes what it is asked.
type fakeSupervisor struct {
	requests []Request
	released []string
	retained map[string][]types.UID
	alone    map[string][]types.UID // retained before the last Ensure
	status   *Status
	err      error
}

const testOwner = "gpu.cleave.dev"

func (f *fakeSupervisor) Ensure(_ context.Context, r Request) (Endpoint, error) {
	f.alone = f.retained
	f.requests = append(f.requests, r)
	return Endpoint{PipeDir: "/mps/pipe", LogDir: "/mps/log", ShmDir: "/mps/shm"}, f.err
}

func (f *fakeSupervisor) Release(_ context.Context, gpuDevice string, claim types.UID) error {
	f.released = append(f.released, gpuDevice+" "+string(claim))
	return f.err
}

func (f *fakeSupervisor) Retain(_ context.Context, gpuDevice, owner string, claims []types.UID) error {
	f.retained = map[string][]types.UID{gpuDevice + " " + owner: claims}
	return f.err
}

func (f *fakeSupervisor) Status(context.Context) (*Status, error) { return f.status, f.err }

func sharedGPU() *gpu.GPU {
	return &gpu.GPU{PCI: gpu.PCIAddress{Bus: 0x1b}, UUID: "GPU-1"}
}

func sharedOffer() *policy.Offer {
	return &policy.Offer{MPS: &policy.Sharing{
		Shares: 10, Memory: policy.NewCut(80<<30, 10, 1<<30, 1<<30), Cores: policy.NewCut(100, 10, 1, 1), SharedMemory: 2 << 30,
	}}
}

func TestStartMPS(t *testing.T) {
	f := &fakeSupervisor{}
	pipe, shm, err := NewSharing(testOwner, f, nil).StartMPS(t.Context(), "claim-1", sharedGPU().Whole(), sharedGPU().UUID, sharedOffer(), nil)
	if err != nil || pipe != "/mps/pipe" || shm != "/mps/shm" {
		t.Errorf("got %q, %q, %v", pipe, shm, err)
	}
	want := []Request{{
		Claim: "claim-1", Device: "gpu-0000-1b-00-0", UUID: "GPU-1", PCI: gpu.PCIAddress{Bus: 0x1b},
		Settings: Settings{SharedMemory: 2 << 30, ActiveThreadPercentage: 100, PinnedMemory: 80 << 30},
		Owner:    testOwner,
	}}
	if diff := cmp.Diff(want, f.requests); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestStartMPS_ExclusiveClaim(t *testing.T) {
	tests := map[string]struct {
		offer  *policy.Offer
		limits records.MPS
		want   Settings
	}{
		"policy with MPS": {sharedOffer(), records.MPS{ThreadPercentage: 50, Memory: 10 << 30}, Settings{SharedMemory: 2 << 30, ActiveThreadPercentage: 50, PinnedMemory: 10 << 30}},
		"no MPS offered":  {&policy.Offer{NoMPS: "it is excluded"}, records.MPS{ThreadPercentage: 50, Memory: 10 << 30}, Settings{SharedMemory: 1 << 30, ActiveThreadPercentage: 50, PinnedMemory: 10 << 30}},
		"no memory limit": {&policy.Offer{}, records.MPS{ThreadPercentage: 100}, Settings{SharedMemory: 1 << 30, ActiveThreadPercentage: 100}},
	}
	for name, tt := range tests {
		f, g := &fakeSupervisor{}, sharedGPU()
		if _, _, err := NewSharing(testOwner, f, nil).StartMPS(t.Context(), "claim-1", g.Whole(), g.UUID, tt.offer, &tt.limits); err != nil || len(f.requests) != 1 {
			t.Errorf("%s: got requests %v, %v", name, f.requests, err)
			continue
		}
		if diff := cmp.Diff(tt.want, f.requests[0].Settings); diff != "" {
			t.Errorf("%s: settings (-want +got):\n%s", name, diff)
		}
		// A claim that a plugin registered before it was killed would have the server go on with settings of its own.
		if diff := cmp.Diff(map[string][]types.UID{g.PCI.DeviceName() + " " + testOwner: {"claim-1"}}, f.alone); diff != "" {
			t.Errorf("%s: claims that stay on the server (-want +got):\n%s", name, diff)
		}
	}
}

func TestStartMPS_NotOffered(t *testing.T) {
	tests := map[string]struct {
		offer *policy.Offer
		want  string
	}{
		"no supervisor":      {&policy.Offer{NoMPS: "the supervisor does not answer"}, "the supervisor does not answer"},
		"not in the policy":  {&policy.Offer{}, "policy does not offer it"},
		"no policy, no tier": {new(policy.Unrestricted(&gpu.GPU{})), "policy does not offer it"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f, g := &fakeSupervisor{}, sharedGPU()
			_, _, err := NewSharing(testOwner, f, nil).StartMPS(t.Context(), "claim-1", g.Whole(), g.UUID, tt.offer, nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) || len(f.requests) > 0 {
				t.Errorf("got %v and requests %v, want an error that says %q and none", err, f.requests, tt.want)
			}
		})
	}
}

func TestSharing_SupervisorErrors(t *testing.T) {
	f := &fakeSupervisor{err: ErrUnavailable}
	s := NewSharing(testOwner, f, nil)
	_, _, start := s.StartMPS(t.Context(), "claim-1", sharedGPU().Whole(), sharedGPU().UUID, sharedOffer(), nil)
	for what, err := range map[string]error{
		"start": start, "stop": s.StopMPS(t.Context(), "claim-1", "gpu-0000-1b-00-0"), "retain": s.RetainMPS(t.Context(), "gpu-0000-1b-00-0", nil),
	} {
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "gpu-0000-1b-00-0") {
			t.Errorf("%s: got %v, want it to name the GPU and wrap %v", what, err, ErrUnavailable)
		}
	}
}

func TestStopMPS_RetainMPS(t *testing.T) {
	f := &fakeSupervisor{}
	s := NewSharing(testOwner, f, nil)
	if err := errors.Join(s.StopMPS(t.Context(), "claim-1", "gpu-x"), s.RetainMPS(t.Context(), "gpu-y", []types.UID{"a", "b"})); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"gpu-x claim-1"}, f.released); diff != "" {
		t.Errorf("released (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string][]types.UID{"gpu-y " + testOwner: {"a", "b"}}, f.retained); diff != "" {
		t.Errorf("retained (-want +got):\n%s", diff)
	}
}
