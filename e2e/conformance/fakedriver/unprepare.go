// SPDX-License-Identifier: Apache-2.0

package fakedriver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// rivalWait is how long a call waits for another one under RefusesConcurrent.
const rivalWait = 2 * time.Second

// NodeUnprepareResources releases claims.
func (d *Driver) NodeUnprepareResources(ctx context.Context,
	req *drapb.NodeUnprepareResourcesRequest) (*drapb.NodeUnprepareResourcesResponse, error) {
	answer := &drapb.NodeUnprepareResourcesResponse{Claims: map[string]*drapb.NodeUnprepareResourceResponse{}}
	for _, c := range req.Claims {
		known, err := preparer{d}.unprepare(ctx, c)
		if !known && d.is(OmitsUnknown) {
			continue
		}
		one := &drapb.NodeUnprepareResourceResponse{}
		if err != nil {
			one.Error = err.Error()
		}
		answer.Claims[c.Uid] = one
		if d.is(PreparesFirstOnly) {
			break
		}
	}
	return answer, nil
}

func (d preparer) unprepare(ctx context.Context, c *drapb.Claim) (known bool, err error) {
	if d.is(ReadsDeletedClaim) {
		if _, err := d.client.ResourceV1().ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{}); err != nil {
			return true, fmt.Errorf("read the claim: %w", err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	r, known := d.records[c.Uid]
	if !known {
		if d.is(FailsUnknown) && !d.released[c.Uid] || d.is(FailsSecondUnprepare) && d.released[c.Uid] {
			return false, errors.New("the claim is not prepared")
		}
		return false, nil
	}
	d.released[c.Uid] = true
	if !d.is(LeavesRecord) {
		delete(d.records, c.Uid)
	}
	for _, a := range r.Devices {
		if a.Admin && d.is(AdminReleasesDevice) || a.Share != "" && d.is(ReleasesAllShares) {
			if err := d.releaseOthers(a.Device); err != nil {
				return true, err
			}
		}
	}
	return true, errors.Join(files(d).removeFiles(c.Uid), d.save())
}

// releaseOthers is wrong: it releases a device for all claims. The caller has the lock.
func (d preparer) releaseOthers(device string) error {
	for uid, r := range d.records {
		if slices.ContainsFunc(r.Devices, func(a allocated) bool { return a.Device == device }) {
			delete(d.records, uid)
			if err := files(d).removeFiles(uid); err != nil {
				return err
			}
		}
	}
	return nil
}
