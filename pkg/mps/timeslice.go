// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/driverroot"
	"github.com/cleave-dra/cleave/pkg/gpu"
)

// Run runs a program of the driver, by its path below the driver's root, and returns what it prints.
type Run func(ctx context.Context, root driverroot.Root, program string, args ...string) (output []byte, err error)

// RunProgram is the Run that runs programs.
func RunProgram(ctx context.Context, root driverroot.Root, program string, args ...string) ([]byte, error) {
	return root.Run(ctx, program, args...)
}

// smiTimeout bounds a run of nvidia-smi, which takes seconds on a loaded node; the kubelet waits 45 s for a claim.
const smiTimeout = 20 * time.Second

// SetTimeSlice sets the interval of a GPU's time slices. NVML has no function for it: nvidia-smi compute-policy is the
// driver's only public way. The driver keeps it until it is unloaded.
func (s *Sharing) SetTimeSlice(ctx context.Context, g *gpu.GPU, interval string) error {
	number := slices.Index(v1alpha1.Intervals(), v1alpha1.Interval(interval))
	if number < 0 {
		return fmt.Errorf("set the time slices of GPU %s: %q is no interval", g.PCI.DeviceName(), interval)
	}
	ctx, cancel := context.WithTimeout(ctx, smiTimeout)
	defer cancel()
	klog.FromContext(ctx).V(4).Info("Setting time slices", "gpu", g.PCI.DeviceName(), "interval", interval)
	root, smi := s.smi()
	output, err := s.run(ctx, root, smi, "compute-policy", "-i", g.UUID, "--set-timeslice", strconv.Itoa(number))
	if err != nil {
		return fmt.Errorf("set the time slices of GPU %s to %s with nvidia-smi: %w: %s",
			g.PCI.DeviceName(), interval, err, driverroot.OneLine(output))
	}
	return nil
}

// smi is the driver's root and the path of nvidia-smi below it, the usual one where there is none: the error names it.
func (s *Sharing) smi() (root driverroot.Root, path string) {
	roots := s.roots
	if found := s.found.Load(); found != nil {
		roots = []driverroot.Root{*found}
	}
	return driverroot.FindSMI(roots)
}
