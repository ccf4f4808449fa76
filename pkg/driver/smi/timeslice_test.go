// SPDX-License-Identifier: Apache-2.0

package smi_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
	"github.com/cleave-dra/cleave/pkg/driver/smi"
)

func sharedGPU() *gpu.GPU {
	return &gpu.GPU{PCI: gpu.PCIAddress{Bus: 0x1b}, UUID: "GPU-1"}
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

func TestSetTimeSlice_Intervals(t *testing.T) {
	// nvidia-smi compute-policy --help: 0 Default, 1 Short, 2 Medium, 3 Long
	for interval, number := range map[string]string{"Default": "0", "Short": "1", "Medium": "2", "Long": "3"} {
		r := &runner{}
		if err := smi.New(roots("/run/driver"), r.run).SetTimeSlice(t.Context(), sharedGPU(), interval); err != nil {
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
		err := smi.New(roots("/"), r.run).SetTimeSlice(t.Context(), sharedGPU(), interval)
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
	err := smi.New(roots("/"), r.run).SetTimeSlice(t.Context(), sharedGPU(), "Long")
	if !errors.Is(err, failed) {
		t.Errorf("got %v, want it to wrap %v", err, failed)
	}
	want := "set the time slices of GPU gpu-0000-1b-00-0 to Long: nvidia-smi compute-policy -i GPU-1 --set-timeslice 3: exit status 6: Unable to set timeslice:? Not Supported"
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
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
		s := smi.New(roots(t.TempDir(), root), func(_ context.Context, under driverroot.Root, program string, _ ...string) ([]byte, error) {
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
	r := &runner{}
	err := errors.Join(smi.New(roots(empty, root), r.run).SetTimeSlice(t.Context(), sharedGPU(), "Long"),
		smi.New(roots(empty, t.TempDir()), r.run).SetTimeSlice(t.Context(), sharedGPU(), "Long"))
	if err != nil || len(r.ran) != 2 {
		t.Fatal(err, r.ran)
	}
	if r.ran[0].Root != root || r.ran[0].Program != "/usr/bin/nvidia-smi" {
		t.Errorf("got %s below %s, want /usr/bin/nvidia-smi below %s", r.ran[0].Program, r.ran[0].Root, root)
	}
	if r.ran[1].Root != empty {
		t.Errorf("got %s, want the first root where none has it", r.ran[1].Root)
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
	s := smi.New(roots(leftOver, running), r.run)
	s.Found(driverroot.Root{Host: running, Here: running})
	if err := s.SetTimeSlice(t.Context(), sharedGPU(), "Long"); err != nil {
		t.Fatal(err)
	}
	if len(r.ran) != 1 || r.ran[0].Root != running {
		t.Errorf("ran %v, want nvidia-smi below %s, whose driver runs", r.ran, running)
	}
}
