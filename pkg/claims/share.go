// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/records"
)

// Sharing is what the engine asks of those who make a GPU shared.
type Sharing interface {
	// SetTimeSlice sets the interval of a GPU's time slices, one of v1alpha1.Intervals.
	SetTimeSlice(ctx context.Context, g *gpu.GPU, interval string) error
	// StartMPS makes a GPU's MPS server serve a claim and returns its folders on the host. It can be repeated. limits are
	// those of the server where it is the claim's alone; nil where claims share it as the GPU offers it.
	StartMPS(ctx context.Context, uid types.UID, g *gpu.GPU, offer *policy.Offer, limits *records.MPS) (pipeDir, shmDir string, err error)
	// StopMPS takes a claim from a GPU's MPS server, which ends with the last one. A claim that it does not serve is no
	// error. It needs no GPU driver.
	StopMPS(ctx context.Context, uid types.UID, gpuDevice string) error
	// RetainMPS takes all other claims of this driver name from a GPU's MPS server. It restores what the server lost by a
	// reload of the driver.
	RetainMPS(ctx context.Context, gpuDevice string, uids []types.UID) error
	// ServedMPS lists what the MPS servers of the node serve, of all driver names. It needs no GPU driver.
	ServedMPS(ctx context.Context) ([]records.Served, error)
}

// config is one opaque configuration of ours.
type config struct {
	source   resourceapi.DeviceAllocationConfiguration
	position int
	params   nvidia.Parameters
}

// rank puts the DeviceClass's before the claim's own.
func (c *config) rank() int {
	if c.source.Source == resourceapi.AllocationConfigSourceClass {
		return 0
	}
	return 1
}

func (c *config) describe() string {
	return fmt.Sprintf("opaque configuration %d (%s)", c.position, describeSource(c.source))
}

// configs are those of a claim that are ours: the DeviceClass's first, the claim's own after.
type configs []config

// decodeConfigs refuses parameters that cannot be honoured.
func decodeConfigs(all []resourceapi.DeviceAllocationConfiguration, driver string) (configs, error) {
	var ours configs
	for i, source := range all {
		if source.Opaque == nil || source.Opaque.Driver != driver {
			continue
		}
		c := config{source: source, position: i}
		var err error
		if c.params, err = nvidia.DecodeParameters(driver, source.Opaque.Parameters.Raw); err != nil {
			return nil, fmt.Errorf("%s: %w", c.describe(), err)
		}
		ours = append(ours, c)
	}
	slices.SortStableFunc(ours, func(a, b config) int { return a.rank() - b.rank() }) // the API promises no order
	return ours, nil
}

// of returns the last one that is for a device, as it has precedence; nil if there is none.
func (cs configs) of(d planned) *config {
	for _, c := range slices.Backward(cs) {
		requests := c.source.Requests
		if len(requests) == 0 && !c.suits(d.shape) {
			continue
		}
		if len(requests) == 0 || slices.Contains(requests, d.request) || slices.Contains(requests, resourceclaim.BaseRequestRef(d.request)) {
			return &c
		}
	}
	return nil
}

// share works out what a device is of a shared GPU; nil for one that is none.
func share(d planned, result resourceapi.DeviceRequestAllocationResult) (*records.Share, error) {
	c := d.config
	if err := checkTier(d.shape, c); err != nil {
		return nil, err
	}
	if d.shape.IsWhole() && !d.admin && c != nil && c.params.NVIDIA != nil {
		return exclusive(d, c)
	}
	if !d.shape.IsShare() || d.admin {
		return nil, nil //nolint:nilnil // not a share is an ordinary answer
	}
	if result.ShareID == nil {
		return nil, fmt.Errorf("device %s is shared, but the allocation has no shareID: turn on the feature gate DRAConsumableCapacity of the scheduler and the API server", result.Device)
	}
	sharing := d.offer.Sharing(d.shape.Share)
	s := &records.Share{ID: string(*result.ShareID), Kind: d.shape.Share, CgroupMemory: sharing.Enforcement == policy.EnforcedPerCgroup}
	for _, amount := range []struct {
		of string
		to *int64
	}{{gpu.CapacityShares, &s.Shares}, {gpu.CapacityMemory, &s.Memory}, {gpu.CapacityCores, &s.Cores}} {
		q, ok := result.ConsumedCapacity[resourceapi.QualifiedName(amount.of)]
		if !ok {
			continue
		}
		n := q.Value() // not AsInt64, to which 1.5Gi is no whole number
		if q.CmpInt64(n) != 0 || n < 0 {
			return nil, fmt.Errorf("the allocation's consumedCapacity %s of device %s is %s: want a whole number", amount.of, result.Device, q.String())
		}
		*amount.to = n
	}
	if s.Kind == gpu.TimeSlice {
		if c != nil {
			s.Interval = string(c.params.Share.TimeSlice.Interval)
		}
		return s, nil
	}
	var err error
	s.MPS, err = mpsLimits(s, c, sharing)
	return s, err
}

// checkTier refuses parameters for another kind of device than the one that was allocated.
func checkTier(s gpu.Shape, c *config) error {
	if c == nil {
		return nil
	}
	if c.params.NVIDIA != nil {
		return checkKind(s, c)
	}
	for _, part := range []struct {
		name string
		set  bool
		of   gpu.Share
	}{{"timeSlice", c.params.Share.TimeSlice != nil, gpu.TimeSlice}, {"mps", c.params.Share.MPS != nil, gpu.MPS}} {
		if part.set && s.Share != part.of {
			return fmt.Errorf("%s sets %s, but device %s is of type %s: remove it, or name the requests that it is for", c.describe(), part.name, s.Name(), typeOf(s))
		}
	}
	return nil
}

// typeOf is the type of a device as it is published.
func typeOf(s gpu.Shape) string {
	switch {
	case s.IsPartition():
		return "mig"
	case s.IsShare():
		return string(s.Share)
	default:
		return "gpu"
	}
}

// manyClients is the number of MPS clients from which each may have only two connections (NVIDIA MPS documentation,
// "Limitations": 60 clients with CUDA_DEVICE_MAX_CONNECTIONS=2).
const manyClients = 48

// wholeGPU is all multiprocessors of a GPU, in percent.
const wholeGPU = 100

// mpsLimits are what was allocated, lowered by the parameters. They may not raise it.
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
	wish := c.params.Share.MPS
	if p := wish.ActiveThreadPercentage; p != nil {
		if int64(*p) > m.ThreadPercentage {
			return nil, fmt.Errorf("%s: mps.activeThreadPercentage %d is more than the %d percent that the claim was allocated: ask for more cores in the request", c.describe(), *p, m.ThreadPercentage)
		}
		m.ThreadPercentage = int64(*p)
	}
	if q := wish.PinnedDeviceMemoryLimit; q != nil {
		if s.Memory > 0 && q.CmpInt64(s.Memory) > 0 {
			return nil, fmt.Errorf("%s: mps.pinnedDeviceMemoryLimit %s is more than the %d bytes that the claim was allocated: ask for more memory in the request", c.describe(), q.String(), s.Memory)
		}
		m.Memory = q.Value()
	}
	if wish.Priority != "" {
		m.BelowNormal = wish.Priority == v1alpha1.PriorityBelowNormal
	}
	return m, nil
}

// checkShares fails if a claim's shares do not fit beside those that others hold: the scheduler counts, but a limit
// that is given twice is none, so it is counted again here, where it holds also when the policy has changed.
func (e *Engine) checkShares(want *records.Record, devices []planned) error {
	e.settleShares(want, devices)
	for i := range want.Devices {
		d := &want.Devices[i]
		if d.Share == nil || d.Share.Exclusive {
			continue // who has a GPU alone has all of it
		}
		if err := e.checkInterval(want, d); err != nil {
			return fmt.Errorf("request %q: %w", d.Request, err)
		}
		if err := e.checkAmounts(want, d, devices[i].offer.Sharing(d.Share.Kind)); err != nil {
			return fmt.Errorf("request %q: %w", d.Request, err)
		}
	}
	return nil
}

// settleShares fills in what the node's policy says of shares and the claim does not. A claim that is prepared again keeps
// what it has, whatever the policy says by now: its containers may run.
func (e *Engine) settleShares(want *records.Record, devices []planned) {
	have := e.index.get(want.Claim.UID)
	for i := range want.Devices {
		d := &want.Devices[i]
		if d.Share == nil {
			continue
		}
		before := shareBefore(have, d)
		keepThreads(d.Share, before)
		if d.Share.Exclusive {
			continue // the policy's numbers are for shares
		}
		if before != nil {
			d.Share.CgroupMemory = before.CgroupMemory
			if d.Share.Interval == "" {
				d.Share.Interval = before.Interval
			}
			if d.Share.MPS != nil && before.MPS != nil {
				d.Share.MPS.ManyClients, d.Share.MPS.BelowNormal = before.MPS.ManyClients, before.MPS.BelowNormal
			}
			continue
		}
		byPolicy := devices[i].offer.Sharing(d.Share.Kind).Interval
		if d.Share.Kind != gpu.TimeSlice || d.Share.Interval != "" || byPolicy == "" || byPolicy == string(v1alpha1.IntervalDefault) {
			continue
		}
		// Where another claim asked for an interval, one that asks for none takes that, as it would without a policy.
		taken := slices.ContainsFunc(want.Shares(gpu.TimeSlice), func(o *records.Device) bool {
			return o.GPU == d.GPU && o.Share.Interval != "" && o.Share.Interval != byPolicy
		})
		if holder, interval := e.index.interval(d.GPU, want.Claim.UID); !taken && (holder == nil || interval == byPolicy) {
			d.Share.Interval = byPolicy
		}
	}
}

// shareBefore is the share that a claim's record has by the same allocation, or nil.
func shareBefore(have *records.Record, d *records.Device) *records.Share {
	if have == nil {
		return nil
	}
	for _, h := range have.Shares(d.Share.Kind) {
		if h.Device == d.Device && h.Share.ID == d.Share.ID {
			return h.Share
		}
	}
	return nil
}

// checkInterval fails if another claim has the GPU's time slices at another interval.
func (e *Engine) checkInterval(want *records.Record, d *records.Device) error {
	if d.Share.Interval == "" {
		return nil
	}
	for _, other := range want.Shares(gpu.TimeSlice) {
		if other.GPU == d.GPU && other.Share.Interval != "" && other.Share.Interval != d.Share.Interval {
			return fmt.Errorf("the claim asks for time slices %s and %s on one GPU, which has one interval for all", d.Share.Interval, other.Share.Interval)
		}
	}
	if holder, interval := e.index.interval(d.GPU, want.Claim.UID); holder != nil && interval != d.Share.Interval {
		return blockedBy(e.index.paced(d.GPU, want.Claim.UID),
			fmt.Errorf("device %s has time slices %s because claim %s asked for them, or the node's policy for it, and this claim asks for %s: ask for the same or for none",
				d.Device, interval, holder.Claim, d.Share.Interval))
	}
	return nil
}

// errNoSharing is what claims for shares get from an engine without Sharing.
var errNoSharing = errors.New("this plugin does not share GPUs")

// startShares makes GPUs shared as a claim's devices need it, and fills in where their servers are.
func (e *Engine) startShares(ctx context.Context, b *backend, want *records.Record) error {
	for _, d := range withInterval(want) {
		if holder, _ := e.index.interval(d.GPU, want.Claim.UID); holder != nil {
			continue // it is so already, and nothing is run without need
		}
		if err := e.setInterval(ctx, b, d, d.Share.Interval); err != nil {
			return fmt.Errorf("request %q: %w", d.Request, err)
		}
	}
	for _, d := range want.Shares(gpu.MPS) {
		node := b.hardware.Node()
		g := node.Find(d.GPU)
		if e.sharing == nil || g == nil {
			return fmt.Errorf("request %q: %w", d.Request, errNoSharing)
		}
		var err error
		if d.Share.MPS.PipeDir, d.Share.MPS.ShmDir, err = e.sharing.StartMPS(ctx, want.Claim.UID, g, node.Offer(g), d.Share.Limits()); err != nil {
			return fmt.Errorf("request %q: %w", d.Request, err)
		}
	}
	return nil
}

// withInterval lists a record's time slices that ask for an interval, one for each GPU: those of one GPU ask for the same.
func withInterval(r *records.Record) []*records.Device {
	var found []*records.Device
	for _, d := range r.Shares(gpu.TimeSlice) {
		if d.Share.Interval != "" && !slices.ContainsFunc(found, func(o *records.Device) bool { return o.GPU == d.GPU }) {
			found = append(found, d)
		}
	}
	return found
}

// stopShares gives back what startShares made for a claim, as far as no other claim needs it.
func (e *Engine) stopShares(ctx context.Context, b *backend, r *records.Record) error {
	if e.sharing == nil {
		return nil
	}
	var errs []error
	for _, d := range withInterval(r) {
		if holder, _ := e.index.interval(d.GPU, r.Claim.UID); holder == nil {
			errs = append(errs, e.setInterval(ctx, b, d, string(v1alpha1.IntervalDefault)))
		}
	}
	for _, d := range r.Shares(gpu.MPS) {
		errs = append(errs, e.sharing.StopMPS(ctx, r.Claim.UID, d.GPU))
	}
	return errors.Join(errs...)
}

func (e *Engine) setInterval(ctx context.Context, b *backend, d *records.Device, interval string) error {
	if b.hardware == nil {
		// That the plugin does not know the driver yet does not mean that none is loaded, which forgets no interval.
		return fmt.Errorf("set the time slices of %s to %s: %w", d.Device, interval, b.reason)
	}
	g, err := locate(b, d)
	switch {
	case err != nil:
		return fmt.Errorf("set the time slices of %s to %s: %w", d.Device, interval, err)
	case g == nil:
		return nil // gone, and its interval with it
	case e.sharing == nil:
		return errNoSharing
	}
	return e.sharing.SetTimeSlice(ctx, g, interval)
}
