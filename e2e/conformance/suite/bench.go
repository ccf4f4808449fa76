// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/cleave-dra/cleave/e2e/conformance/driver"
	"github.com/cleave-dra/cleave/e2e/conformance/kube"
)

// request is the name of the only request of most claims.
const request = "device"

// exclusive and multiple select devices by how often they are allocated.
const (
	exclusive = "!device.allowMultipleAllocations"
	multiple  = "device.allowMultipleAllocations"
)

// bench is what one case works with. It keeps the claims that the case made.
type bench struct {
	*session

	conn   *driver.Conn
	claims []*resourceapi.ResourceClaim
	undo   []func(context.Context) error
}

func (s *session) newBench() *bench { return &bench{session: s} }

// cleanUp releases all claims of a case and deletes them.
func (b *bench) cleanUp(ctx context.Context) error {
	var failed []error
	for _, undo := range slices.Backward(b.undo) {
		failed = append(failed, undo(ctx))
	}
	for _, claim := range b.claims {
		if claim.Status.Allocation != nil {
			failed = append(failed, b.unprepared(ctx, claim))
		}
		failed = append(failed, b.cluster.Delete(ctx, claim.Name, claim.UID))
	}
	b.claims, b.undo = nil, nil
	failed = append(failed, b.disconnect())
	return errors.Join(failed...)
}

// connect returns a connection to the driver.
func (b *bench) connect(ctx context.Context) (*driver.Conn, error) {
	if b.conn == nil {
		conn, err := b.driver.Connect(ctx)
		if err != nil {
			return nil, err
		}
		b.conn = conn
	}
	return b.conn, nil
}

func (b *bench) disconnect() error {
	if b.conn == nil {
		return nil
	}
	conn := b.conn
	b.conn = nil
	return conn.Close()
}

func exactly(class string) resourceapi.ResourceClaimSpec {
	return requests(resourceapi.DeviceRequest{Name: request, Exactly: exact(class)})
}

func requests(all ...resourceapi.DeviceRequest) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: all}}
}

func exact(class string) *resourceapi.ExactDeviceRequest {
	return &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
}

// claim creates a claim for one device and allocates what the scheduler would; what does not fit skips the case.
func (b *bench) claim(ctx context.Context, name string, selectors ...string) (*resourceapi.ResourceClaim, error) {
	return b.claimOf(ctx, name, exactly, selectors...)
}

// claimOf does it for any spec, with the first class from which it can be allocated.
func (b *bench) claimOf(ctx context.Context, name string, spec func(class string) resourceapi.ResourceClaimSpec,
	selectors ...string) (*resourceapi.ResourceClaim, error) {
	var none []error
	for _, class := range b.Classes {
		found, err := b.cluster.Fit(ctx, selected(spec(class), selectors))
		if errors.Is(err, kube.ErrNoFit) {
			none = append(none, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		return b.allocated(ctx, name, spec(class), found[0])
	}
	return nil, skipf("none of the classes %q has such a device free: %v", b.Classes, errors.Join(none...))
}

// selected adds selectors to each request of a spec, for the allocator alone: an API server that lacks a feature would
// refuse a claim that names it.
func selected(spec resourceapi.ResourceClaimSpec, selectors []string) resourceapi.ResourceClaimSpec {
	for i := range spec.Devices.Requests {
		for _, s := range selectors {
			if r := spec.Devices.Requests[i].Exactly; r != nil {
				r.Selectors = append(r.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: s}})
			}
		}
	}
	return spec
}

func (b *bench) allocated(ctx context.Context, name string, spec resourceapi.ResourceClaimSpec,
	allocation resourceapi.AllocationResult) (*resourceapi.ResourceClaim, error) {
	claim, err := b.cluster.Create(ctx, name, spec)
	if err != nil {
		return nil, err
	}
	b.claims = append(b.claims, claim)
	if claim, err = b.cluster.Allocate(ctx, claim, allocation); err != nil {
		return nil, err
	}
	b.claims[len(b.claims)-1] = claim
	return claim, nil
}

// again allocates what another claim has to a claim of its own, which the scheduler would not do. change may be nil.
func (b *bench) again(ctx context.Context, name string, first *resourceapi.ResourceClaim,
	change func(*resourceapi.ResourceClaimSpec, *resourceapi.AllocationResult)) (*resourceapi.ResourceClaim, error) {
	second := first.DeepCopy()
	if change != nil {
		change(&second.Spec, second.Status.Allocation)
	}
	return b.allocated(ctx, name, second.Spec, *second.Status.Allocation)
}

// reference is how the kubelet names a claim.
func reference(claim *resourceapi.ResourceClaim) *drapb.Claim {
	return &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}
}

func references(claims []*resourceapi.ResourceClaim) []*drapb.Claim {
	var all []*drapb.Claim
	for _, c := range claims {
		all = append(all, reference(c))
	}
	return all
}

// call prepares claims with one call and returns the whole answer.
func (b *bench) call(ctx context.Context, claims ...*drapb.Claim) (map[string]*drapb.NodePrepareResourceResponse, error) {
	conn, err := b.connect(ctx)
	if err != nil {
		return nil, err
	}
	answer, err := conn.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: claims})
	if err != nil {
		return nil, fmt.Errorf("prepare %d claims: %w", len(claims), err)
	}
	return answer.Claims, nil
}

func (b *bench) prepared(ctx context.Context, claim *resourceapi.ResourceClaim) ([]*drapb.Device, error) {
	answer, err := b.call(ctx, reference(claim))
	if err != nil {
		return nil, err
	}
	return devicesOf(answer, claim.Name, claim.UID)
}

// claimPrepared creates a claim for a device, as claim does, and prepares it.
func claimPrepared(ctx context.Context, b *bench, name string, selectors ...string) (*resourceapi.ResourceClaim, []*drapb.Device, error) {
	claim, err := b.claim(ctx, name, selectors...)
	if err != nil {
		return nil, nil, err
	}
	devices, err := b.prepared(ctx, claim)
	return claim, devices, err
}

func devicesOf(answer map[string]*drapb.NodePrepareResourceResponse, name string, uid types.UID) ([]*drapb.Device, error) {
	one, ok := answer[string(uid)]
	if !ok {
		return nil, fmt.Errorf("prepare claim %s: the answer has no entry for its UID", name)
	}
	if one.GetError() != "" {
		return nil, fmt.Errorf("prepare claim %s: %w", name, errors.New(one.GetError()))
	}
	return one.GetDevices(), nil
}

func (b *bench) unprepared(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	return b.release(ctx, reference(claim))
}

// release unprepares claims with one call; each needs an entry without an error.
func (b *bench) release(ctx context.Context, claims ...*drapb.Claim) error {
	conn, err := b.connect(ctx)
	if err != nil {
		return err
	}
	answer, err := conn.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: claims})
	if err != nil {
		return fmt.Errorf("unprepare %d claims: %w", len(claims), err)
	}
	for _, c := range claims {
		one, ok := answer.Claims[c.Uid]
		if !ok {
			return fmt.Errorf("unprepare claim %s: the answer has no entry for its UID", c.Name)
		}
		if one.GetError() != "" {
			return fmt.Errorf("unprepare claim %s: %w", c.Name, errors.New(one.GetError()))
		}
	}
	return nil
}
