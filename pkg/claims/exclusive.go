// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"
	"slices"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/records"
)

// NVIDIA's driver shares a whole GPU among the containers of the one claim that has it, by parameters of that claim. Here
// it is a share that is exclusive: the claim holds the GPU as one without parameters does, and the GPU is in the state of
// a shared one as long.

// suits tells whether parameters that name no request are for a device. NVIDIA's are for devices of their kind and pass
// over others, as they do with NVIDIA's driver; ours are for all.
func (c *config) suits(s gpu.Shape) bool {
	return c.params.NVIDIA == nil || c.params.NVIDIA.Kind == kindOf(s)
}

// kindOf is the kind of NVIDIA's parameters for a device; empty where there is none.
func kindOf(s gpu.Shape) string {
	switch {
	case s.IsPartition():
		return nvidia.MIGDeviceConfigKind
	case s.IsShare():
		return ""
	default:
		return nvidia.GPUConfigKind
	}
}

// checkKind refuses NVIDIA's parameters of another kind than the device's.
func checkKind(s gpu.Shape, c *config) error {
	want, kind := kindOf(s), c.params.NVIDIA.Kind
	switch {
	case kind == want:
		return nil
	case want == "":
		return fmt.Errorf("%s is a %s, but device %s is of type %s: use kind %s of %s", c.describe(), kind, s.Name(), typeOf(s), v1alpha1.ShareConfigKind, v1alpha1.APIVersion)
	default:
		return fmt.Errorf("%s is a %s, but device %s is of type %s: use a %s, or name the requests that it is for", c.describe(), kind, s.Name(), typeOf(s), want)
	}
}

// checkKinds refuses NVIDIA's parameters that fit none of a claim's devices. Prepare cannot rely on the requests that an
// entry names: the scheduler of Kubernetes 1.37 clears them in the allocation where they are all of the claim
// (k8s.io/dynamic-resource-allocation, structured, "If a config applies to all requests, clear its Requests field").
func (cs configs) checkKinds(devices []planned, alternatives bool) error {
	if alternatives {
		return nil
	}
	for i := range cs {
		c := &cs[i]
		if c.params.NVIDIA == nil || len(c.source.Requests) > 0 || slices.ContainsFunc(devices, func(d planned) bool { return c.suits(d.shape) }) {
			continue
		}
		if err := checkKind(devices[0].shape, c); err != nil {
			return fmt.Errorf("request %q: %w", devices[0].request, err)
		}
	}
	return nil
}

// mpsMajor is the compute capability from which on MPS limits its clients: 7.0, Volta (NVIDIA MPS documentation, "Volta MPS
// Execution Resource Provisioning").
const mpsMajor = 7

// exclusive works out how a claim's own processes share the whole GPU that it has; nil where nothing has to be done for
// it. Each GPU has the default interval as long as nobody asks for another.
func exclusive(d planned, c *config) (*records.Share, error) {
	params, g := c.params.NVIDIA, d.shape.GPU
	s := &records.Share{ID: records.ExclusiveID, Exclusive: true}
	if !params.UsesMPS() {
		if params.Interval() == v1alpha1.IntervalDefault {
			return nil, nil //nolint:nilnil // not a share is an ordinary answer
		}
		s.Kind, s.Interval = gpu.TimeSlice, string(params.Interval())
		return s, nil
	}
	if v := g.ComputeCapability; v != nil && v.Major < mpsMajor {
		return nil, fmt.Errorf("%s asks for MPS, which limits its clients from compute capability %d.0 (Volta) on, and GPU %s has %s: use strategy TimeSlicing", c.describe(), mpsMajor, d.shape.Name(), v)
	}
	s.Kind, s.MPS = gpu.MPS, &records.MPS{} // all multiprocessors, as long as nothing says
	wish := params.Sharing.MPS
	if wish != nil && wish.ActiveThreadPercentage != nil {
		s.MPS.ThreadPercentage = int64(*wish.ActiveThreadPercentage)
	}
	var err error
	if s.MPS.Memory, err = wish.MemoryLimit(g.UUID); err != nil {
		return nil, fmt.Errorf("%s: %w", c.describe(), err)
	}
	if g.Memory != nil && uint64(s.MPS.Memory) >= *g.Memory {
		s.MPS.Memory = 0 // no limit, as there is no more
	}
	return s, nil
}
