// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// admins are what cases with several claims for one device need.
type admins struct{ *bench }

var adminCases = []Case{
	{
		Name:   "admin/in-use",
		Rule:   "A claim with admin access gets a device that another claim has, and neither disturbs the other.",
		Source: "resource/v1 ExactDeviceRequest.adminAccess: \"They ignore all ordinary claims to the device\"; KEP-5018",
		run:    adminInUse,
	},
	{
		Name:   "admin/free",
		Rule:   "A claim with admin access takes no device from an ordinary claim.",
		Source: "resource/v1 ExactDeviceRequest.adminAccess; KEP-5018",
		run:    adminFree,
	},
}

// admin makes a claim with admin access to the device of another.
func (b admins) admin(ctx context.Context, of *resourceapi.ResourceClaim) (*resourceapi.ResourceClaim, error) {
	yes := true
	return b.again(ctx, "admin", of, func(spec *resourceapi.ResourceClaimSpec, allocation *resourceapi.AllocationResult) {
		spec.Devices.Requests[0].Exactly.AdminAccess = &yes
		allocation.Devices.Results[0].AdminAccess = &yes
	})
}

// preparedRight prepares a claim and checks its devices.
func (b admins) preparedRight(ctx context.Context, claim *resourceapi.ResourceClaim) ([]*drapb.Device, error) {
	devices, err := b.prepared(ctx, claim)
	if err != nil {
		return nil, err
	}
	return devices, errors.Join(b.checkDevices(claim, devices), b.resolve(devices))
}

// still checks that a claim has what it had.
func (b admins) still(ctx context.Context, claim *resourceapi.ResourceClaim, had []*drapb.Device, after string) error {
	if err := b.resolve(had); err != nil {
		return fmt.Errorf("claim %s, after %s: %w", claim.Name, after, err)
	}
	has, err := b.preparedRight(ctx, claim)
	if err == nil {
		err = sameDevices(had, has)
	}
	if err != nil {
		return fmt.Errorf("claim %s, after %s: %w", claim.Name, after, err)
	}
	return nil
}

func adminInUse(ctx context.Context, b *bench) (string, error) {
	owner, err := b.claim(ctx, "owner", exclusive)
	if err != nil {
		return "", err
	}
	has, err := admins{b}.preparedRight(ctx, owner)
	if err != nil {
		return "", err
	}
	admin, err := admins{b}.admin(ctx, owner)
	if err != nil {
		return "", err
	}
	seen, err := admins{b}.preparedRight(ctx, admin)
	if err != nil {
		return "", err
	}
	if err := (admins{b}).still(ctx, owner, has, "a claim with admin access was prepared"); err != nil {
		return "", err
	}
	if err := b.unprepared(ctx, admin); err != nil {
		return "", err
	}
	if err := (admins{b}).still(ctx, owner, has, "a claim with admin access was unprepared"); err != nil {
		return "", err
	}
	if _, err := (admins{b}).preparedRight(ctx, admin); err != nil {
		return "", err
	}
	if err := b.unprepared(ctx, owner); err != nil {
		return "", err
	}
	return fmt.Sprintf("both have %d devices", len(has)), admins{b}.still(ctx, admin, seen, "the owner was unprepared")
}

func adminFree(ctx context.Context, b *bench) (string, error) {
	owner, err := b.claim(ctx, "owner", exclusive)
	if err != nil {
		return "", err
	}
	admin, err := admins{b}.admin(ctx, owner)
	if err != nil {
		return "", err
	}
	seen, err := admins{b}.preparedRight(ctx, admin)
	if err != nil {
		return "", err
	}
	if _, err := (admins{b}).preparedRight(ctx, owner); err != nil {
		return "", fmt.Errorf("after a claim with admin access was prepared: %w", err)
	}
	return fmt.Sprintf("both have %d devices", len(seen)), admins{b}.still(ctx, admin, seen, "the owner was prepared")
}
