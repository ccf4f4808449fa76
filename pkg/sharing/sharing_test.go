package sharing

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/mps"
	"github.com/cleave-dra/cleave/pkg/records"
)

// fakeSupervisor notes what it is asked.
type fakeSupervisor struct {
	requests []mps.Request
	released []string
	retained map[string][]types.UID
	err      error
}

func (f *fakeSupervisor) Ensure(_ context.Context, r mps.Request) (mps.Endpoint, error) {
	f.requests = append(f.requests, r)
	return mps.Endpoint{PipeDir: "/mps/pipe", LogDir: "/mps/log", ShmDir: "/mps/shm"}, f.err
}

func (f *fakeSupervisor) Release(_ context.Context, gpuDevice string, claim types.UID) error {
	f.released = append(f.released, gpuDevice+" "+string(claim))
	return f.err
}

func (f *fakeSupervisor) Retain(_ context.Context, gpuDevice string, claims []types.UID) error {
	f.retained = map[string][]types.UID{gpuDevice: claims}
	return f.err
}

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

func (r *runner) run(ctx context.Context, root, program string, args ...string) ([]byte, error) {
	_, bounded := ctx.Deadline()
	r.ran = append(r.ran, ran{root, program, args, bounded})
	return []byte(r.output), r.err
}

func sharedGPU() *gpu.GPU {
	return &gpu.GPU{
		PCI: gpu.PCIAddress{Bus: 0x1b}, UUID: "GPU-1",
		Offer: &gpu.Offer{MPS: &gpu.Sharing{
			Shares: 10, Memory: gpu.NewCut(80<<30, 10, 1<<30, 1<<30), Cores: gpu.NewCut(100, 10, 1, 1), SharedMemory: 2 << 30,
		}},
	}
}

func TestEachIntervalIsSetByItsNumber(t *testing.T) {
	// nvidia-smi compute-policy --help: 0 Default, 1 Short, 2 Medium, 3 Long
	for interval, number := range map[string]string{"Default": "0", "Short": "1", "Medium": "2", "Long": "3"} {
		r := &runner{}
		if err := New(&fakeSupervisor{}, []string{"/run/driver/"}, r.run).SetTimeSlice(t.Context(), sharedGPU(), interval); err != nil {
			t.Errorf("%s: %v", interval, err)
		}
		want := []ran{{"/run/driver", "/usr/bin/nvidia-smi", []string{"compute-policy", "-i", "GPU-1", "--set-timeslice", number}, true}}
		if diff := cmp.Diff(want, r.ran); diff != "" {
			t.Errorf("%s: programs (-want +got):\n%s", interval, diff)
		}
	}
}

func TestAnUnknownIntervalIsRefusedAndNothingIsRun(t *testing.T) {
	for _, interval := range []string{"", "long", "Forever", "3"} {
		r := &runner{}
		err := New(&fakeSupervisor{}, []string{"/"}, r.run).SetTimeSlice(t.Context(), sharedGPU(), interval)
		if err == nil || !strings.Contains(err.Error(), `"`+interval+`"`) || !strings.Contains(err.Error(), "gpu-0000-1b-00-0") {
			t.Errorf("%q: got %v, want an error that names it and the GPU", interval, err)
		}
		if len(r.ran) > 0 {
			t.Errorf("%q: ran %v", interval, r.ran)
		}
	}
}

func TestTheErrorOfNvidiaSMIHoldsWhatItSaidOnOneLine(t *testing.T) {
	failed := errors.New("exit status 6")
	r := &runner{output: "Unable to set\n\ttimeslice:\xff Not Supported\n\n", err: failed}
	err := New(&fakeSupervisor{}, []string{"/"}, r.run).SetTimeSlice(t.Context(), sharedGPU(), "Long")
	if !errors.Is(err, failed) {
		t.Errorf("got %v, want it to wrap %v", err, failed)
	}
	want := "set the time slices of GPU gpu-0000-1b-00-0 to Long with nvidia-smi: exit status 6: Unable to set timeslice:? Not Supported"
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

func TestAServerIsAskedForWithAllOfItsGPU(t *testing.T) {
	f := &fakeSupervisor{}
	pipe, shm, err := New(f, []string{"/"}, nil).StartMPS(t.Context(), "claim-1", sharedGPU(), nil)
	if err != nil || pipe != "/mps/pipe" || shm != "/mps/shm" {
		t.Errorf("got %q, %q, %v", pipe, shm, err)
	}
	want := []mps.Request{{
		Claim: "claim-1", Device: "gpu-0000-1b-00-0", UUID: "GPU-1", PCI: gpu.PCIAddress{Bus: 0x1b},
		Settings: mps.Settings{SharedMemory: 2 << 30, ActiveThreadPercentage: 100, PinnedMemory: 80 << 30},
	}}
	if diff := cmp.Diff(want, f.requests); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestAServerThatIsOneClaimsAloneHasTheClaimsLimitsWhateverThePolicyOffers(t *testing.T) {
	tests := map[string]struct {
		offer  *gpu.Offer
		limits records.MPS
		want   mps.Settings
	}{
		"policy with MPS": {sharedGPU().Offer, records.MPS{ThreadPercentage: 50, Memory: 10 << 30}, mps.Settings{SharedMemory: 2 << 30, ActiveThreadPercentage: 50, PinnedMemory: 10 << 30}},
		"no MPS offered":  {&gpu.Offer{NoMPS: "it is excluded"}, records.MPS{ThreadPercentage: 50, Memory: 10 << 30}, mps.Settings{SharedMemory: 1 << 30, ActiveThreadPercentage: 50, PinnedMemory: 10 << 30}},
		"no memory limit": {nil, records.MPS{ThreadPercentage: 100}, mps.Settings{SharedMemory: 1 << 30, ActiveThreadPercentage: 100}},
	}
	for name, tt := range tests {
		f, g := &fakeSupervisor{}, sharedGPU()
		g.Offer = tt.offer
		if _, _, err := New(f, []string{"/"}, nil).StartMPS(t.Context(), "claim-1", g, &tt.limits); err != nil || len(f.requests) != 1 {
			t.Errorf("%s: got requests %v, %v", name, f.requests, err)
			continue
		}
		if diff := cmp.Diff(tt.want, f.requests[0].Settings); diff != "" {
			t.Errorf("%s: settings (-want +got):\n%s", name, diff)
		}
	}
}

func TestAGPUThatIsNotSharedByMPSIsRefusedWithTheReason(t *testing.T) {
	tests := map[string]struct {
		offer *gpu.Offer
		want  string
	}{
		"no supervisor":      {&gpu.Offer{NoMPS: "the supervisor does not answer"}, "the supervisor does not answer"},
		"not in the policy":  {&gpu.Offer{}, "policy does not offer it"},
		"no policy, no tier": {nil, "policy does not offer it"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f, g := &fakeSupervisor{}, sharedGPU()
			g.Offer = tt.offer
			_, _, err := New(f, []string{"/"}, nil).StartMPS(t.Context(), "claim-1", g, nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) || len(f.requests) > 0 {
				t.Errorf("got %v and requests %v, want an error that says %q and none", err, f.requests, tt.want)
			}
		})
	}
}

func TestErrorsOfTheSupervisorNameTheGPUAndKeepTheirCause(t *testing.T) {
	f := &fakeSupervisor{err: mps.ErrUnavailable}
	s := New(f, []string{"/"}, nil)
	_, _, start := s.StartMPS(t.Context(), "claim-1", sharedGPU(), nil)
	for what, err := range map[string]error{
		"start": start, "stop": s.StopMPS(t.Context(), "claim-1", "gpu-0000-1b-00-0"), "retain": s.RetainMPS(t.Context(), "gpu-0000-1b-00-0", nil),
	} {
		if !errors.Is(err, mps.ErrUnavailable) || !strings.Contains(err.Error(), "gpu-0000-1b-00-0") {
			t.Errorf("%s: got %v, want it to name the GPU and wrap %v", what, err, mps.ErrUnavailable)
		}
	}
}

func TestClaimsAreTakenFromTheServerOfTheirGPU(t *testing.T) {
	f := &fakeSupervisor{}
	s := New(f, []string{"/"}, nil)
	if err := errors.Join(s.StopMPS(t.Context(), "claim-1", "gpu-x"), s.RetainMPS(t.Context(), "gpu-y", []types.UID{"a", "b"})); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"gpu-x claim-1"}, f.released); diff != "" {
		t.Errorf("released (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string][]types.UID{"gpu-y": {"a", "b"}}, f.retained); diff != "" {
		t.Errorf("retained (-want +got):\n%s", diff)
	}
}

// script makes a small program and returns its path.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAProgramRunsWithNothingOfThePluginsEnvironment(t *testing.T) {
	t.Setenv("LD_PRELOAD_OF_THE_PLUGIN", "secret")
	output, err := InRoot(t.Context(), "/", script(t, `env; echo "arguments $*"; pwd; echo trouble >&2`), "a", "b c")
	if err != nil {
		t.Fatal(err)
	}
	got := string(output)
	for _, want := range []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin\n", "LANG=C.UTF-8\n", "arguments a b c\n", "\n/\n", "trouble\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("output %q has no %q", got, want)
		}
	}
	if strings.Contains(got, "secret") {
		t.Errorf("output %q has the plugin's environment", got)
	}
}

func TestAProgramThatFailsOrIsNotThereIsAnErrorWithItsOutput(t *testing.T) {
	output, err := InRoot(t.Context(), "/", script(t, "echo no such GPU >&2; exit 6"))
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 6 || string(output) != "no such GPU\n" {
		t.Errorf("got %q, %v, want exit status 6", output, err)
	}
	if _, err := InRoot(t.Context(), "/", "/does/not/exist"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want %v", err, os.ErrNotExist)
	}
}

func TestTheOutputOfAProgramIsBoundedAndTheRestReadAway(t *testing.T) {
	output, err := InRoot(t.Context(), "/", script(t, "head -c 1000000 /dev/zero | tr '\\0' x; echo the end"))
	if err != nil {
		t.Fatal(err)
	}
	if string(output) != strings.Repeat("x", maxOutput) {
		t.Errorf("got %d bytes, want the first %d", len(output), maxOutput)
	}
}

func TestAProgramEndsWithTheContext(t *testing.T) {
	dir := t.TempDir()
	started := filepath.Join(dir, "started")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// A pipe tells that the program runs: it is opened when the other side is.
	if output, err := exec.Command("mkfifo", started).CombinedOutput(); err != nil {
		t.Fatalf("mkfifo: %v: %s", err, output)
	}
	done := make(chan error, 1)
	go func() {
		_, err := InRoot(ctx, "/", script(t, "echo running >"+started+"; exec cat "+started))
		done <- err
	}()
	if _, err := os.ReadFile(started); err != nil {
		t.Fatal(err)
	}
	cancel()
	err := <-done
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want an error that says why it ended: %v", err, context.Canceled)
	}
}

func TestAProgramRunsBelowTheRootOfTheDriver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may change the root folder")
	}
	// A root without a shell cannot run a script; that the program is looked for below it shows in the error.
	root := t.TempDir()
	if _, err := InRoot(t.Context(), root, script(t, "true")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want %v: the program is not below the root", err, os.ErrNotExist)
	}
}

func TestNvidiaSMIIsFoundWhereDriversPutIt(t *testing.T) {
	for _, place := range []string{"/usr/local/nvidia/bin", "/usr/bin"} { // the second is preferred
		root := t.TempDir()
		for _, dir := range []string{"/usr/local/nvidia/bin", place} {
			if err := errors.Join(os.MkdirAll(filepath.Join(root, dir), 0o700), os.WriteFile(filepath.Join(root, dir, "nvidia-smi"), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		var ran string
		s := New(nil, []string{t.TempDir(), root}, func(_ context.Context, under, program string, _ ...string) ([]byte, error) {
			ran = under + " " + program
			return nil, nil
		})
		if err := s.SetTimeSlice(t.Context(), &gpu.GPU{UUID: "GPU-1"}, "Long"); err != nil || ran != root+" "+place+"/nvidia-smi" {
			t.Errorf("ran %q, %v, want %s/nvidia-smi below %s", ran, err, place, root)
		}
	}
}

func TestNvidiaSMIMayBeALinkThatLeadsNowhereFromHere(t *testing.T) {
	empty, root := t.TempDir(), t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "/usr/bin"), 0o700), os.Symlink("/etc/alternatives/nvidia--nvidia-smi", filepath.Join(root, "/usr/bin/nvidia-smi"))); err != nil {
		t.Fatal(err)
	}
	if under, path := New(nil, []string{empty, root}, nil).smi(); under != root || path != "/usr/bin/nvidia-smi" {
		t.Errorf("got %s below %s, want /usr/bin/nvidia-smi below %s", path, under, root)
	}
	if under, _ := New(nil, []string{empty, t.TempDir()}, nil).smi(); under != empty {
		t.Errorf("got %s, want the first root where none has it", under)
	}
}
