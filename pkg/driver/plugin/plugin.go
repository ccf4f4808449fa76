// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/claimstatus"
	"github.com/cleave-dra/cleave/pkg/driver/usage"
)

// Claims is the part of the claims engine that the plugin uses.
type Claims interface {
	Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]records.Device, error)
	Unprepare(ctx context.Context, claim records.Claim) error
}

// plugin implements the kubelet's calls.
type plugin struct {
	claims Claims
	// record returns the record of a claim, nil if it has none; nil for claims without records.
	record  func(types.UID) *records.Record
	metrics *metrics
	health  *gpuHealth
	// claimEvents reports problems of claims; may be nil.
	claimEvents *claimEvents
	// status writes device details to the status of claims; may be nil.
	status *claimstatus.Writer
	// inventory returns the node's GPUs; nil while the driver is away.
	inventory func() *gpu.Node
	// fatal ends the plugin after an error that retries cannot fix.
	fatal context.CancelCauseFunc
	// written is called with each error of background work, such as writing slices; may be nil.
	written func(err error)
}

// plugin implements the helper's interface.
var _ kubeletplugin.DRAPlugin = (*plugin)(nil)

// PrepareResourceClaims prepares claims concurrently and independently.
func (p *plugin) PrepareResourceClaims(ctx context.Context,
	claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := make([]kubeletplugin.PrepareResult, len(claims))
	concurrently(len(claims), func(i int) {
		ref := records.Claim{Namespace: claims[i].Namespace, Name: claims[i].Name, UID: claims[i].UID}
		var devices []records.Device
		err := p.observe(ctx, prepareOperation, ref, tierOfClaim(claims[i]), func() (err error) {
			devices, err = p.claims.Prepare(ctx, claims[i])
			return err
		})
		p.claimEvents.prepared(ref, err)
		results[i] = kubeletplugin.PrepareResult{Err: err, Devices: toKubelet(devices, p.inventory())}
		if err == nil {
			p.status.Changed(ref)
		}
	})
	byUID := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for i, claim := range claims {
		byUID[claim.UID] = results[i]
	}
	return byUID, nil
}

// UnprepareResourceClaims unprepares claims independently.
func (p *plugin) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	errs := make([]error, len(claims))
	concurrently(len(claims), func(i int) {
		ref := records.Claim{Namespace: claims[i].Namespace, Name: claims[i].Name, UID: claims[i].UID}
		errs[i] = p.observe(ctx, unprepareOperation, ref, p.tierOfRecord(ref.UID), func() error { return p.claims.Unprepare(ctx, ref) })
		p.claimEvents.unprepared(ref, errs[i])
		p.status.Changed(ref) // even after an error: devices may be released while their partitions remain
	})
	byUID := make(map[types.UID]error, len(claims))
	for i, claim := range claims {
		byUID[claim.UID] = errs[i]
	}
	return byUID, nil
}

// observe runs one operation on one claim and reports it in one log line and one metric sample.
func (p *plugin) observe(ctx context.Context, operation string, claim records.Claim, tier string, run func() error) error {
	start := time.Now()
	err := run()
	took := time.Since(start)
	p.metrics.observe(operation, tier, claim.UID, took, err)
	logger := klog.FromContext(ctx)
	if err != nil {
		logger.Error(err, "Claim failed", "operation", operation, "claim", claim, "duration", took)
		return err
	}
	logger.V(2).Info("Claim done", "operation", operation, "claim", claim, "duration", took)
	return nil
}

// tierOfRecord returns the tier for duration metrics of a claim with a record.
func (p *plugin) tierOfRecord(uid types.UID) string {
	if p.record == nil {
		return tierNone
	}
	if r := p.record(uid); r != nil && len(r.Devices) > 0 {
		return string(usage.TierOf(&r.Devices[0]))
	}
	return tierNone
}

// tierOfClaim returns the tier for duration metrics of an allocated claim: that of the first device of this driver. Other drivers'
// devices do not have such names.
func tierOfClaim(claim *resourceapi.ResourceClaim) string {
	if a := claim.Status.Allocation; a != nil {
		for i := range a.Devices.Results {
			if tier, ok := usage.TierOfName(a.Devices.Results[i].Device); ok {
				return string(tier)
			}
		}
	}
	return tierNone
}

// concurrently runs operations concurrently, the first on the caller's goroutine: most pods have one claim, and its stack has
// already grown.
func concurrently(n int, run func(i int)) {
	var wg sync.WaitGroup
	for i := 1; i < n; i++ {
		wg.Go(func() { run(i) })
	}
	if n > 0 {
		run(0)
	}
	wg.Wait()
}

// toKubelet returns how a container gets each device, and its device metadata.
func toKubelet(devices []records.Device, inventory *gpu.Node) []kubeletplugin.Device {
	answer := make([]kubeletplugin.Device, 0, len(devices))
	for i := range devices {
		d := &devices[i]
		known := claimstatus.Describe(d, inventory)
		device := kubeletplugin.Device{
			Requests: []string{d.Request}, PoolName: d.Pool, DeviceName: d.Device,
			CDIDeviceIDs: slices.Clip(d.CDIDeviceIDs), // the helper appends to it, and concurrent calls have the same record
			Metadata:     &kubeletplugin.DeviceMetadata{Attributes: claimstatus.Attributes(&known)},
		}
		if id := types.UID(d.AllocatedShareID()); id != "" {
			device.ShareID = &id
		}
		answer = append(answer, device)
	}
	return answer
}

// HandleError logs a background error, and ends the plugin if no retry can fix it.
func (p *plugin) HandleError(ctx context.Context, err error, msg string) {
	utilruntime.HandleErrorWithContext(ctx, err, msg)
	if p.written != nil {
		p.written(err)
	}
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		p.fatal(err)
	}
}

// WatchHealthStatus reports the health of all devices to the kubelet until ctx ends.
func (p *plugin) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	return p.health.watch(ctx, reports)
}
