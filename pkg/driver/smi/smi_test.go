// SPDX-License-Identifier: Apache-2.0

package smi_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
	"github.com/cleave-dra/cleave/pkg/driver/smi"
)

var pci = gpu.PCIAddress{Bus: 0x07}

// run is one run of nvidia-smi.
type run struct {
	Root, Command string
	Bounded       bool // by a deadline
}

// runner notes what is run and answers as a test says.
type runner struct {
	ran    []run
	output string
	err    error
}

// tool is one that looks for the program in these directories, which are at the same paths on the host.
func (r *runner) tool(dirs ...string) *smi.Tool {
	var roots []driverroot.Root
	for _, dir := range dirs {
		roots = append(roots, driverroot.Root{Host: dir, Here: dir})
	}
	return smi.New(roots, func(ctx context.Context, root driverroot.Root, program string, args ...string) ([]byte, error) {
		_, bounded := ctx.Deadline()
		r.ran = append(r.ran, run{root.Here, program + " " + strings.Join(args, " "), bounded})
		return []byte(r.output), r.err
	})
}

func TestTool_Query(t *testing.T) {
	for output, want := range map[string]smi.State{
		"Disabled, Disabled, Enabled\n": {Persistence: true},
		"Disabled, Enabled, Disabled\n": {Pending: true},
		"Enabled, Enabled, Enabled\n":   {Current: true, Pending: true, Persistence: true},
		"WARNING: infoROM is corrupted at gpu 0000:07:00.0\nDisabled, Enabled, Disabled\n":       {Pending: true},
		"Disabled, Enabled, Disabled\nWARNING: Enabled, persistence mode is a legacy feature.\n": {Pending: true},
		"[N/A], [N/A], Enabled": {Persistence: true}, // a GPU without MIG
	} {
		got, err := (&runner{output: output}).tool("/nowhere").Query(t.Context(), pci)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %v (-want +got):\n%s", output, err, diff)
		}
	}
	for output, want := range map[string]smi.State{
		"": {}, "Enabled, Enabled": {}, "Unable to determine the device handle": {},
		"Enabled, Enabled, [N/A]":                             {Current: true, Pending: true},
		"[GPU requires reset], [GPU requires reset], Enabled": {Persistence: true},
	} {
		got, err := (&runner{output: output}).tool("/nowhere").Query(t.Context(), pci)
		if diff := cmp.Diff(want, got); diff != "" || err == nil || !strings.Contains(err.Error(), "printed") {
			t.Errorf("%q: %v (-want +got):\n%s", output, err, diff)
		}
	}
}

func TestTool_Arguments(t *testing.T) {
	r := &runner{output: "done"}
	ok := r.tool("/run/driver")
	_, err := ok.SetMode(t.Context(), pci, true)
	err = errors.Join(err, ok.SetPersistence(t.Context(), pci, false), ok.Reset(t.Context(), pci))
	var want []run
	for _, args := range []string{"-i 0000:07:00.0 -mig 1", "-i 0000:07:00.0 -pm 0", "-i 0000:07:00.0 --gpu-reset",
		// nvidia-smi compute-policy --help: 0 Default, 1 Short, 2 Medium, 3 Long
		"compute-policy -i GPU-1 --set-timeslice 0", "compute-policy -i GPU-1 --set-timeslice 1",
		"compute-policy -i GPU-1 --set-timeslice 2", "compute-policy -i GPU-1 --set-timeslice 3"} {
		want = append(want, run{"/run/driver", "/usr/bin/nvidia-smi " + args, true})
	}
	for _, interval := range []string{"Default", "Short", "Medium", "Long"} {
		err = errors.Join(err, ok.SetTimeSlice(t.Context(), sharedGPU(), interval))
	}
	if diff := cmp.Diff(want, r.ran); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
