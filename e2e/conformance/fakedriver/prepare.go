// SPDX-License-Identifier: Apache-2.0

package fakedriver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// preparer prepares and unprepares one claim.
type preparer struct{ *Driver }

// NodePrepareResources prepares claims.
func (d *Driver) NodePrepareResources(ctx context.Context,
	req *drapb.NodePrepareResourcesRequest) (*drapb.NodePrepareResourcesResponse, error) {
	answer := &drapb.NodePrepareResourcesResponse{Claims: map[string]*drapb.NodePrepareResourceResponse{}}
	if d.is(RefusesConcurrent) && len(req.Claims) > 0 {
		done, err := preparer{d}.enter(ctx)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	for _, c := range req.Claims {
		devices, err := preparer{d}.prepare(ctx, c)
		if err != nil && d.is(FailsWholeCall) && len(req.Claims) > 1 {
			return nil, err
		}
		one := &drapb.NodePrepareResourceResponse{Devices: devices}
		if err != nil {
			one = &drapb.NodePrepareResourceResponse{Error: err.Error()}
		}
		if !d.is(OmitsEntry) {
			answer.Claims[c.Uid] = one
		}
		if d.is(PreparesFirstOnly) {
			break
		}
	}
	if d.is(OneBadSpoilsAll) {
		spoil(answer.Claims)
	}
	return answer, nil
}

// spoil gives all claims the error that one has.
func spoil(answer map[string]*drapb.NodePrepareResourceResponse) {
	for _, bad := range answer {
		if bad.Error == "" {
			continue
		}
		for _, one := range answer {
			one.Error = bad.Error
		}
	}
}

// enter lets one call in at a time and refuses others. The first waits for one to refuse, so that a caller that makes
// several at once sees it each time, and a caller that makes one at a time is not kept for long.
func (d preparer) enter(ctx context.Context) (func(), error) {
	select {
	case d.busy <- struct{}{}:
	default:
		select {
		case d.rivals <- struct{}{}:
		default:
		}
		return nil, errors.New("another call runs")
	}
	ctx, cancel := context.WithTimeout(ctx, rivalWait)
	defer cancel()
	select {
	case <-d.rivals:
	case <-ctx.Done():
	}
	return func() { <-d.busy }, nil
}

func (d preparer) prepare(ctx context.Context, c *drapb.Claim) ([]*drapb.Device, error) {
	claim, err := d.client.ResourceV1().ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && d.is(PreparesMissing) {
		return nil, nil
	}
	if err != nil {
		if d.is(MissingBlocks) {
			d.count("missing")
		}
		return nil, fmt.Errorf("read the claim: %w", err)
	}
	if d.is(MissingBlocks) && d.counted("missing") > 0 {
		return nil, errors.New("a claim is missing")
	}
	if string(claim.UID) != c.Uid && !d.is(IgnoresUID) {
		return nil, errors.New("the claim was replaced")
	}
	if claim.Status.Allocation == nil {
		return nil, errors.New("the claim is not allocated")
	}
	if err := d.checkConfig(claim); err != nil {
		return nil, err
	}
	if err := d.take(claim); err != nil {
		return nil, err
	}
	devices := d.answer(claim)
	if err := errors.Join(files(d).writeFiles(claim, devices), files(d).writeStatus(ctx, claim)); err != nil {
		return nil, err
	}
	if d.is(ShrinksCapacity) {
		return devices, publisher(d).publish(ctx)
	}
	return devices, nil
}

func (d preparer) checkConfig(claim *resourceapi.ResourceClaim) error {
	for _, config := range claim.Status.Allocation.Devices.Config {
		if config.Opaque.Driver == Name && !d.is(AcceptsParameters) || d.is(ReadsOthersConfig) {
			return errors.New("the parameters are of an unknown kind")
		}
	}
	return nil
}

// results are the driver's in an allocation.
func (d preparer) results(claim *resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	return slices.DeleteFunc(slices.Clone(claim.Status.Allocation.Devices.Results), func(r resourceapi.DeviceRequestAllocationResult) bool {
		return r.Driver != Name && !d.is(PreparesOthers)
	})
}

// take records a claim, unless another one has its devices.
func (d preparer) take(claim *resourceapi.ResourceClaim) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, again := d.records[string(claim.UID)]; again {
		if d.is(FailsSecondPrepare) {
			return errors.New("the claim is prepared already")
		}
		return nil
	}
	r := record{Namespace: claim.Namespace, Name: claim.Name}
	for _, result := range d.results(claim) {
		a := allocated{Device: result.Device, Admin: result.AdminAccess != nil && *result.AdminAccess}
		if result.ShareID != nil {
			a.Share = string(*result.ShareID)
		}
		if a.Admin && d.is(RefusesAdmin) {
			return errors.New("admin access is not served")
		}
		if len(result.Tolerations) > 0 && d.is(RefusesTolerations) {
			return errors.New("tolerations are not served")
		}
		if err := d.free(a); err != nil {
			return err
		}
		r.Devices = append(r.Devices, a)
	}
	d.records[string(claim.UID)] = r
	return d.save()
}

// free is nil if a device can be taken. The caller has the lock.
func (d preparer) free(a allocated) error {
	for uid, r := range d.records {
		for _, other := range r.Devices {
			if other.Device != a.Device || d.is(AllowsDoubleUse) {
				continue
			}
			shared := other.Share != "" && a.Share != "" && !d.is(RefusesSecondShare)
			admin := (other.Admin || a.Admin) && (!d.is(AdminTakesDevice) || a.Admin)
			if shared || admin {
				continue
			}
			if d.is(RefusedTakesOver) {
				delete(d.records, uid)
				return errors.Join(errors.New("the device was in use"), files(d).removeFiles(uid))
			}
			return fmt.Errorf("device %s is in use by claim %s/%s", a.Device, r.Namespace, r.Name)
		}
	}
	return nil
}

// answer are the devices for the kubelet.
func (d preparer) answer(claim *resourceapi.ResourceClaim) []*drapb.Device {
	var devices []*drapb.Device
	for _, r := range d.results(claim) {
		name, _, _ := strings.Cut(r.Request, "/")
		if d.is(NamesSubrequest) {
			name = r.Request
		}
		one := &drapb.Device{RequestNames: []string{name}, PoolName: r.Pool, DeviceName: r.Device}
		if r.ShareID != nil {
			share := string(*r.ShareID)
			one.ShareId = &share
		}
		if d.has(CDI) {
			one.CdiDeviceIds = files(d).cdiIDs(claim, r.Request)
		}
		devices = append(devices, d.spoilDevice(one))
		if d.is(GivesDeviceTwice) {
			devices = append(devices, one)
		}
	}
	if d.is(OneShareOnly) && len(devices) > 1 {
		devices = devices[:1]
	}
	return devices
}

func (d preparer) spoilDevice(one *drapb.Device) *drapb.Device {
	other := "11111111-2222-4333-8444-666666666666"
	switch {
	case d.is(GivesOtherDevice):
		one.DeviceName += "-other"
	case d.is(GivesOtherRequest):
		one.RequestNames = append(one.RequestNames, "other")
	case d.is(WrongShareID) && one.ShareId != nil:
		one.ShareId = &other
	case d.is(UnqualifiedCDI):
		one.CdiDeviceIds = []string{one.DeviceName}
	case d.is(ChangesAnswer):
		one.CdiDeviceIds = append(one.CdiDeviceIds, fmt.Sprintf("%s/device=%d", Name, d.count("prepare")))
	}
	return one
}
