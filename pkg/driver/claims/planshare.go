// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// share returns the device's share of a GPU or partition; nil if the device is not shared.
func share(d device, result resourceapi.DeviceRequestAllocationResult) (*records.Share, error) {
	c := d.config
	if err := checkTier(d.shape, c); err != nil {
		return nil, err
	}
	if !d.shape.IsShare() && !d.admin && c != nil && c.params.Exclusive() {
		return exclusive(d, c)
	}
	if !d.shape.IsShare() || d.admin {
		return nil, nil //nolint:nilnil // not a share, but not an error
	}
	if result.ShareID == nil {
		return nil, fmt.Errorf("device %s is shared, but the allocation has no shareID: enable the feature gate DRAConsumableCapacity in the "+
			"scheduler and the API server, then delete the claim with its pods: it does not change", result.Device)
	}
	sharing := d.offer.Sharing(d.shape)
	s := &records.Share{ID: string(*result.ShareID), Kind: d.shape.Share, CgroupMemory: sharing.Enforcement == policy.EnforcedPerCgroup}
	for _, amount := range []struct {
		of string
		to *int64
	}{{gpu.CapacityShares, &s.Shares}, {gpu.CapacityMemory, &s.Memory}, {gpu.CapacityCores, &s.Cores}} {
		q, ok := result.ConsumedCapacity[resourceapi.QualifiedName(amount.of)]
		if !ok {
			continue
		}
		n := q.Value() // not AsInt64, which does not treat 1.5Gi as a whole number
		if q.CmpInt64(n) != 0 || n < 0 {
			return nil, fmt.Errorf("the allocation's consumedCapacity %s of device %s is %s: want a whole number",
				amount.of, result.Device, q.String())
		}
		*amount.to = n
	}
	if s.Kind == gpu.TimeSlice {
		if c != nil {
			s.Interval = string(c.params.TimeSlice.Interval)
		}
		if s.Interval != "" && d.shape.IsPartition() {
			return nil, fmt.Errorf("%s: timeSlice.interval: a GPU has one interval for all of its partitions, so none can have its own: remove it, "+
				"or use a device of type %s", c.describe(), gpu.TypeTimeSlice)
		}
		return s, nil
	}
	var err error
	if s.MPS, err = mpsLimits(s, c, sharing); err != nil {
		return nil, err
	}
	return s, checkThreads(d.shape, c, s.MPS.ThreadPercentage)
}

// manyClients is the number of MPS clients above which none may have more than the two connections of the default: a server takes 60
// with these, and fewer with more (NVIDIA MPS documentation, "Client-Server Connection Limits", CUDA_DEVICE_MAX_CONNECTIONS).
const manyClients = 48

// wholeGPU is all multiprocessors of a GPU, in percent.
const wholeGPU = 100

// mpsLimits returns the allocated limits, lowered by the parameters. Parameters cannot raise them.
func mpsLimits(s *records.Share, c *config, sharing *policy.Sharing) (*records.MPS, error) {
	m := &records.MPS{
		ThreadPercentage: s.Cores, Memory: s.Memory, ManyClients: sharing.Shares > manyClients,
		BelowNormal: sharing.Priority == string(v1alpha1.PriorityBelowNormal),
	}
	if m.ThreadPercentage == 0 {
		m.ThreadPercentage = wholeGPU
	}
	if c == nil {
		return m, nil
	}
	wish := c.params.MPS
	if p := wish.ActiveThreadPercentage; p != nil {
		if int64(*p) > m.ThreadPercentage {
			return nil, fmt.Errorf("%s: mps.activeThreadPercentage %d is more than the %d percent allocated to the claim: request more cores",
				c.describe(), *p, m.ThreadPercentage)
		}
		m.ThreadPercentage = int64(*p)
	}
	if q := wish.PinnedDeviceMemoryLimit; q != nil {
		if s.Memory > 0 && q.CmpInt64(s.Memory) > 0 {
			return nil, fmt.Errorf("%s: mps.pinnedDeviceMemoryLimit %s is more than the %s allocated to the claim: request more memory",
				c.describe(), q, resource.NewQuantity(s.Memory, resource.BinarySI))
		}
		m.Memory = q.Value()
	}
	if wish.Priority != "" {
		m.BelowNormal = wish.Priority == v1alpha1.PriorityBelowNormal
	}
	return m, nil
}

// checkThreads rejects a percentage of a partition that is less than one multiprocessor: MPS cannot divide one.
func checkThreads(s gpu.Shape, c *config, percent int64) error {
	if !s.IsPartition() || percent == 0 || percent >= s.Profile.LeastCores() {
		return nil
	}
	by := "the allocation"
	if c != nil {
		by = c.describe()
	}
	return fmt.Errorf("%s: %d%% of partition %s (%s) is less than one of its %d multiprocessors: request %d%% or more",
		by, percent, s.Unshared().Name(), s.Profile.Name, s.Profile.Multiprocessors, s.Profile.LeastCores())
}

// NVIDIA's driver shares a whole GPU or partition among the containers of its one claim, by parameters of that
// claim. Here it is an exclusive share: the claim has the device as one without parameters would, while the device is set up
// like a shared one.

// mpsMajor is the compute capability from which MPS can limit its clients: 7.0, Volta (NVIDIA MPS documentation, "Volta MPS
// Execution Resource Provisioning").
const mpsMajor = 7

// exclusive determines how a claim's own processes share its GPU or partition; nil if nothing has to be set up. Each GPU
// has the default interval as long as no claim requests another.
func exclusive(d device, c *config) (*records.Share, error) {
	params, g := c.params, d.shape.GPU
	s := &records.Share{ID: records.ExclusiveID, Exclusive: true}
	if params.MPS == nil {
		if params.TimeSlice.Interval == v1alpha1.IntervalDefault {
			return nil, nil //nolint:nilnil // not a share, but not an error
		}
		s.Kind, s.Interval = gpu.TimeSlice, string(params.TimeSlice.Interval)
		return s, nil
	}
	if v := g.ComputeCapability; v != nil && v.Major < mpsMajor {
		return nil, fmt.Errorf("%s requests MPS, which can limit clients from compute capability %d.0 (Volta) on, but GPU %s has %s: use "+
			"strategy TimeSlicing", c.describe(), mpsMajor, d.shape.Name(), v)
	}
	s.Kind, s.MPS = gpu.MPS, &records.MPS{} // all multiprocessors by default
	if p := params.MPS.ActiveThreadPercentage; p != nil {
		s.MPS.ThreadPercentage = int64(*p)
	}
	var err error
	if s.MPS.Memory, err = params.MPS.MemoryLimit(g.UUID); err != nil {
		return nil, fmt.Errorf("%s: %w", c.describe(), err)
	}
	memory := g.Memory
	if d.shape.IsPartition() {
		memory = &d.shape.Profile.Memory
	}
	if memory != nil && uint64(s.MPS.Memory) >= *memory {
		s.MPS.Memory = 0 // no limit: the device has no more memory
	}
	return s, checkThreads(d.shape, c, s.MPS.ThreadPercentage)
}

// checkServers rejects a request for MPS shares of several GPUs or partitions: a container can use one server only, that of
// CUDA_MPS_PIPE_DIRECTORY. Several requests may each have one, for their own containers.
func checkServers(devices []device) error {
	first, alone := map[string]device{}, map[int]device{}
	for _, d := range devices {
		if d.share == nil || d.share.Kind != gpu.MPS {
			continue
		}
		if other, ok := first[d.request]; ok && other.shape.Unshared().Name() != d.shape.Unshared().Name() {
			if d.share.Exclusive {
				return fmt.Errorf("request %q: %s requests MPS on two devices, %s and %s: an MPS server serves only one, and a container "+
					"can use only one server. Request each device in a request of its own, with an opaque configuration and a container of its own",
					d.request, d.config.describe(), other.shape.Name(), d.shape.Name())
			}
			return fmt.Errorf("request %q: it has MPS shares of two devices, %s and %s, but a container can use only one of them: request them in "+
				"two requests, one for each container, or request whole GPUs", d.request, other.shape.Name(), d.shape.Name())
		}
		first[d.request] = d
		if !d.share.Exclusive {
			continue
		}
		if other, ok := alone[d.config.position]; ok {
			return fmt.Errorf("request %q: %s requests one MPS server for two devices, %s of request %q and %s, but one server "+
				"cannot serve both: give each request an opaque configuration and a container of its own",
				d.request, d.config.describe(), other.shape.Name(), other.request, d.shape.Name())
		}
		alone[d.config.position] = d
	}
	return nil
}
