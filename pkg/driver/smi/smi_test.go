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

// tool is one that prints something, and notes its arguments.
func tool(output string, err error, args *[]string) *smi.Tool {
	roots := []driverroot.Root{{Here: "/nowhere"}}
	return smi.New(roots, func(_ context.Context, _ driverroot.Root, program string, given ...string) ([]byte, error) {
		*args = append(*args, program+" "+strings.Join(given, " "))
		return []byte(output), err
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
		var args []string
		got, err := tool(output, nil, &args).Query(t.Context(), pci)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %v (-want +got):\n%s", output, err, diff)
		}
	}
	for _, output := range []string{"", "Enabled, Enabled, [N/A]", "Enabled, Enabled", "Unable to determine the device handle"} {
		var args []string
		if got, err := tool(output, nil, &args).Query(t.Context(), pci); err == nil || !strings.Contains(err.Error(), "printed") {
			t.Errorf("%q: %v, %v", output, got, err)
		}
	}
}

func TestTool_Arguments(t *testing.T) {
	var args []string
	ok := tool("done", nil, &args)
	_, err := ok.SetMode(t.Context(), pci, true)
	err = errors.Join(err, ok.SetPersistence(t.Context(), pci, false), ok.Reset(t.Context(), pci))
	want := []string{
		"/usr/bin/nvidia-smi -i 0000:07:00.0 -mig 1", "/usr/bin/nvidia-smi -i 0000:07:00.0 -pm 0", "/usr/bin/nvidia-smi -i 0000:07:00.0 --gpu-reset",
	}
	if diff := cmp.Diff(want, args); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestTool_Fails(t *testing.T) {
	var args []string
	err := tool("GPU 0: In use\nby another client", errors.New("exit status 255"), &args).Reset(t.Context(), pci)
	const want = "nvidia-smi -i 0000:07:00.0 --gpu-reset: exit status 255: GPU 0: In use by another client"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
