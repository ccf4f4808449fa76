// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/driverroot"
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/records"
)

// fakeSupervisor notes what it is asked.
type fakeSupervisor struct {
	requests []Request
	released []string
	retained map[string][]types.UID
	status   *Status
	err      error
}

const testOwner = "gpu.cleave.dev"

func (f *fakeSupervisor) Ensure(_ context.Context, r Request) (Endpoint, error) {
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

// ran is one program that was run.
type ran struct {
	Root, Program string
	Args          []string
	Bounded       bool // by a deadline
}

// runner notes what is run and answers as a test says.
type runner struct {
	ran    []ran
	output string
	err    error
}

func (r *runner) run(ctx context.Context, root driverroot.Root, program string, args ...string) ([]byte, error) {
	_, bounded := ctx.Deadline()
	r.ran = append(r.ran, ran{root.Here, program, args, bounded})
	return []byte(r.output), r.err
}

// roots are at the same paths on the host and here.
func roots(dirs ...string) []driverroot.Root {
	var all []driverroot.Root
	for _, dir := range dirs {
		all = append(all, driverroot.Root{Host: dir, Here: dir})
	}
	return all
}

func sharedGPU() *gpu.GPU {
	return &gpu.GPU{PCI: gpu.PCIAddress{Bus: 0x1b}, UUID: "GPU-1"}
}

func sharedOffer() *policy.Offer {
	return &policy.Offer{MPS: &policy.Sharing{
		Shares: 10, Memory: policy.NewCut(80<<30, 10, 1<<30, 1<<30), Cores: policy.NewCut(100, 10, 1, 1), SharedMemory: 2 << 30,
	}}
}

func TestSetTimeSlice_Intervals(t *testing.T) {
	// nvidia-smi compute-policy --help: 0 Default, 1 Short, 2 Medium, 3 Long
	for interval, number := range map[string]string{"Default": "0", "Short": "1", "Medium": "2", "Long": "3"} {
		r := &runner{}
		if err := NewSharing(testOwner, &fakeSupervisor{}, roots("/run/driver"), r.run).SetTimeSlice(t.Context(), sharedGPU(), interval); err != nil {
			t.Errorf("%s: %v", interval, err)
		}
		want := []ran{{"/run/driver", "/usr/bin/nvidia-smi", []string{"compute-policy", "-i", "GPU-1", "--set-timeslice", number}, true}}
		if diff := cmp.Diff(want, r.ran); diff != "" {
			t.Errorf("%s: programs (-want +got):\n%s", interval, diff)
		}
	}
}

func TestSetTimeSlice_UnknownInterval(t *testing.T) {
	for _, interval := range []string{"", "long", "Forever", "3"} {
		r := &runner{}
		err := NewSharing(testOwner, &fakeSupervisor{}, roots("/"), r.run).SetTimeSlice(t.Context(), sharedGPU(), interval)
		if err == nil || !strings.Contains(err.Error(), `"`+interval+`"`) || !strings.Contains(err.Error(), "gpu-0000-1b-00-0") {
			t.Errorf("%q: got %v, want an error that names it and the GPU", interval, err)
		}
		if len(r.ran) > 0 {
			t.Errorf("%q: ran %v", interval, r.ran)
		}
	}
}

func TestSetTimeSlice_NvidiaSMIFails(t *testing.T) {
	failed := errors.New("exit status 6")
	r := &runner{output: "Unable to set\n\ttimeslice:\xff Not Supported\n\n", err: failed}
	err := NewSharing(testOwner, &fakeSupervisor{}, roots("/"), r.run).SetTimeSlice(t.Context(), sharedGPU(), "Long")
	if !errors.Is(err, failed) {
		t.Errorf("got %v, want it to wrap %v", err, failed)
	}
	want := "set the time slices of GPU gpu-0000-1b-00-0 to Long with nvidia-smi: exit status 6: Unable to set timeslice:? Not Supported"
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

func TestStartMPS(t *testing.T) {
	f := &fakeSupervisor{}
	pipe, shm, err := NewSharing(testOwner, f, roots("/"), nil).StartMPS(t.Context(), "claim-1", sharedGPU().Whole(), sharedGPU().UUID, sharedOffer(), nil)
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
		if _, _, err := NewSharing(testOwner, f, roots("/"), nil).StartMPS(t.Context(), "claim-1", g.Whole(), g.UUID, tt.offer, &tt.limits); err != nil || len(f.requests) != 1 {
			t.Errorf("%s: got requests %v, %v", name, f.requests, err)
			continue
		}
		if diff := cmp.Diff(tt.want, f.requests[0].Settings); diff != "" {
			t.Errorf("%s: settings (-want +got):\n%s", name, diff)
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
		"no policy, no tier": {new(policy.Unrestricted()), "policy does not offer it"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f, g := &fakeSupervisor{}, sharedGPU()
			_, _, err := NewSharing(testOwner, f, roots("/"), nil).StartMPS(t.Context(), "claim-1", g.Whole(), g.UUID, tt.offer, nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) || len(f.requests) > 0 {
				t.Errorf("got %v and requests %v, want an error that says %q and none", err, f.requests, tt.want)
			}
		})
	}
}

func TestSharing_SupervisorErrors(t *testing.T) {
	f := &fakeSupervisor{err: ErrUnavailable}
	s := NewSharing(testOwner, f, roots("/"), nil)
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
	s := NewSharing(testOwner, f, roots("/"), nil)
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

func TestSetTimeSlice_NvidiaSMIPaths(t *testing.T) {
	for _, place := range []string{"/usr/local/nvidia/bin", "/usr/bin"} { // the second is preferred
		root := t.TempDir()
		for _, dir := range []string{"/usr/local/nvidia/bin", place} {
			if err := errors.Join(os.MkdirAll(filepath.Join(root, dir), 0o700), os.WriteFile(filepath.Join(root, dir, "nvidia-smi"), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		var ran string
		s := NewSharing(testOwner, nil, roots(t.TempDir(), root), func(_ context.Context, under driverroot.Root, program string, _ ...string) ([]byte, error) {
			ran = under.Here + " " + program
			return nil, nil
		})
		if err := s.SetTimeSlice(t.Context(), &gpu.GPU{UUID: "GPU-1"}, "Long"); err != nil || ran != root+" "+place+"/nvidia-smi" {
			t.Errorf("ran %q, %v, want %s/nvidia-smi below %s", ran, err, place, root)
		}
	}
}

func TestSetTimeSlice_NvidiaSMIDanglingLink(t *testing.T) {
	empty, root := t.TempDir(), t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "/usr/bin"), 0o700), os.Symlink("/etc/alternatives/nvidia--nvidia-smi", filepath.Join(root, "/usr/bin/nvidia-smi"))); err != nil {
		t.Fatal(err)
	}
	if under, path := NewSharing(testOwner, nil, roots(empty, root), nil).smi(); under.Here != root || path != "/usr/bin/nvidia-smi" {
		t.Errorf("got %s below %s, want /usr/bin/nvidia-smi below %s", path, under.Here, root)
	}
	if under, _ := NewSharing(testOwner, nil, roots(empty, t.TempDir()), nil).smi(); under.Here != empty {
		t.Errorf("got %s, want the first root where none has it", under)
	}
}

func TestSetTimeSlice_RootThatWasFound(t *testing.T) {
	leftOver, running := t.TempDir(), t.TempDir()
	for _, root := range []string{leftOver, running} {
		if err := errors.Join(os.MkdirAll(filepath.Join(root, "usr/bin"), 0o700), os.WriteFile(filepath.Join(root, "usr/bin/nvidia-smi"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	r := &runner{}
	s := NewSharing(testOwner, nil, roots(leftOver, running), r.run)
	s.Found(driverroot.Root{Host: running, Here: running})
	if err := s.SetTimeSlice(t.Context(), sharedGPU(), "Long"); err != nil {
		t.Fatal(err)
	}
	if len(r.ran) != 1 || r.ran[0].Root != running {
		t.Errorf("ran %v, want nvidia-smi below %s, whose driver runs", r.ran, running)
	}
}
