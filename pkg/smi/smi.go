// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/driverroot"
	"github.com/cleave-dra/cleave/pkg/gpu"
)

// Run runs a program of the driver, by its path below the driver's root, and returns what it prints.
type Run func(ctx context.Context, root driverroot.Root, program string, args ...string) (output []byte, err error)

// Time limits of a run. A GPU is initialised when nvidia-smi opens it, which takes seconds, and a reset takes some more.
const (
	shortRun = 20 * time.Second
	longRun  = 60 * time.Second
)

// Tool runs nvidia-smi.
type Tool struct {
	roots []driverroot.Root
	found atomic.Pointer[driverroot.Root]
	run   Run
}

// New makes a Tool that looks for the program where the driver's files may be, in one root at least.
func New(roots []driverroot.Root, run Run) *Tool { return &Tool{roots: roots, run: run} }

// Found sets which of the roots has the driver that runs: another may have programs of a driver that does not.
func (t *Tool) Found(root driverroot.Root) { t.found.Store(&root) }

// Root is the root of the driver that runs, or the first where there may be one.
func (t *Tool) Root() driverroot.Root {
	if found := t.found.Load(); found != nil {
		return *found
	}
	return t.roots[0]
}

// State is what nvidia-smi reports of a GPU.
type State struct {
	// Current is the MIG mode, Pending that after the next reset.
	Current, Pending bool
	// Persistence is the persistence mode, in which the driver keeps the GPU open.
	Persistence bool
}

// queried are the fields of a State, in its order.
const queried = "mig.mode.current,mig.mode.pending,persistence_mode"

// Query asks for the state of the GPU at an address.
func (t *Tool) Query(ctx context.Context, pci gpu.PCIAddress) (State, error) {
	output, err := t.call(ctx, shortRun, pci, "--query-gpu="+queried, "--format=csv,noheader")
	if err != nil {
		return State{}, err
	}
	var answers []bool
	for _, word := range strings.Split(strings.TrimSpace(string(output)), ",") {
		switch strings.TrimSpace(word) {
		case "Enabled":
			answers = append(answers, true)
		case "Disabled":
			answers = append(answers, false)
		}
	}
	if len(answers) != 3 {
		return State{}, fmt.Errorf("nvidia-smi --query-gpu=%s of the GPU at %s printed %q", queried, pci, driverroot.OneLine(output))
	}
	return State{Current: answers[0], Pending: answers[1], Persistence: answers[2]}, nil
}

// SetMode asks for a MIG mode. Where nothing has the GPU open the driver resets it for that; else the mode is pending, which is
// no error: Query tells.
func (t *Tool) SetMode(ctx context.Context, pci gpu.PCIAddress, enable bool) (said string, err error) {
	output, err := t.call(ctx, longRun, pci, "-mig", digit(enable))
	return driverroot.OneLine(output), err
}

// SetPersistence switches the persistence mode.
func (t *Tool) SetPersistence(ctx context.Context, pci gpu.PCIAddress, on bool) error {
	_, err := t.call(ctx, shortRun, pci, "-pm", digit(on))
	return err
}

// Reset resets the GPU.
func (t *Tool) Reset(ctx context.Context, pci gpu.PCIAddress) error {
	_, err := t.call(ctx, longRun, pci, "--gpu-reset")
	return err
}

func digit(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

// call runs nvidia-smi for one GPU.
func (t *Tool) call(ctx context.Context, limit time.Duration, pci gpu.PCIAddress, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	roots := t.roots
	if found := t.found.Load(); found != nil {
		roots = []driverroot.Root{*found}
	}
	root, program := driverroot.FindSMI(roots)
	args = append([]string{"-i", pci.String()}, args...)
	klog.FromContext(ctx).V(6).Info("Running nvidia-smi", "args", args)
	output, err := t.run(ctx, root, program, args...)
	if err != nil {
		return output, fmt.Errorf("nvidia-smi %s: %w: %s", strings.Join(args, " "), err, driverroot.OneLine(output))
	}
	return output, nil
}
