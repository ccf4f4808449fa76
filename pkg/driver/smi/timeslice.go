// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// SetTimeSlice sets the interval of a GPU's time slices. NVML has no function for it: nvidia-smi compute-policy is the driver's
// only public way. The driver keeps it until it is unloaded. Claims on different GPUs do not wait for each other, only for a change
// of a MIG mode.
func (t *Tool) SetTimeSlice(ctx context.Context, g *gpu.GPU, interval string) error {
	number := slices.Index(v1alpha1.Intervals(), v1alpha1.Interval(interval))
	if number < 0 {
		return fmt.Errorf("set the time slices of GPU %s: invalid time-slice interval %q", g.PCI.DeviceName(), interval)
	}
	klog.FromContext(ctx).V(4).Info("Setting time slices", "gpu", g.PCI.DeviceName(), "interval", interval)
	_, err := t.start(ctx, shortRun, &program{pci: g.PCI}, "compute-policy", "-i", g.UUID, "--set-timeslice", strconv.Itoa(number))
	if err != nil {
		return fmt.Errorf("set the time slices of GPU %s to %s: %w", g.PCI.DeviceName(), interval, err)
	}
	return nil
}
