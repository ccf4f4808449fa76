// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/e2e/conformance/kube"
)

var statusCases = []Case{
	{
		Name:   "status/devices",
		Rule:   "If the driver writes the status of a claim's devices, it has one entry for each, and none of another device.",
		Source: "resource/v1 ResourceClaimStatus.devices, AllocatedDeviceStatus; KEP-4817",
		run:    statusDevices,
	},
	{
		Name:   "status/conditions",
		Rule:   "Conditions in that status have a type, a status, a reason and a time; Ready of a prepared device is True.",
		Source: "resource/v1 AllocatedDeviceStatus.conditions: \"the `Ready` condition should be True\"; KEP-4817",
		run:    statusConditions,
	},
}

// ownStatus prepares a claim and waits for what the driver writes of its devices; nothing skips the case.
func (b *bench) ownStatus(ctx context.Context) (*resourceapi.ResourceClaim, []resourceapi.AllocatedDeviceStatus, error) {
	claim, err := b.two(ctx, "status")
	if err != nil {
		return nil, nil, err
	}
	if _, err := (admins{b}).preparedRight(ctx, claim); err != nil {
		return nil, nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, b.SettleTimeout)
	defer cancel()
	var own []resourceapi.AllocatedDeviceStatus
	err = kube.Until(waiting, "status.devices", func(ctx context.Context) (bool, string, error) {
		written, err := b.cluster.Claim(ctx, claim.Name)
		if err != nil {
			return false, "", err
		}
		own = slices.DeleteFunc(written.Status.Devices, func(d resourceapi.AllocatedDeviceStatus) bool { return d.Driver != b.Driver })
		return len(own) > 0, "nothing", nil
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, nil, skipf("the driver wrote nothing to status.devices within %s", b.SettleTimeout)
	}
	return claim, own, err
}

// two makes a claim with two requests, or with one where only one device is free.
func (b *bench) two(ctx context.Context, name string) (*resourceapi.ResourceClaim, error) {
	claim, err := b.claimOf(ctx, name, func(class string) resourceapi.ResourceClaimSpec {
		spec := exactly(class)
		spec.Devices.Requests = append(spec.Devices.Requests, resourceapi.DeviceRequest{Name: "second", Exactly: exact(class)})
		return spec
	})
	if skip := (skipped{}); errors.As(err, &skip) {
		return b.claim(ctx, name)
	}
	return claim, err
}

func statusDevices(ctx context.Context, b *bench) (string, error) {
	claim, own, err := b.ownStatus(ctx)
	if err != nil {
		return "", err
	}
	results := b.resultsOf(claim)
	for _, d := range own {
		if !slices.ContainsFunc(results, func(r resourceapi.DeviceRequestAllocationResult) bool { return isStatusOf(d, r) }) {
			return "", fmt.Errorf("status.devices has %s/%s, which the claim does not", d.Pool, d.Device)
		}
	}
	for _, r := range results {
		if !slices.ContainsFunc(own, func(d resourceapi.AllocatedDeviceStatus) bool { return isStatusOf(d, r) }) {
			return "", fmt.Errorf("status.devices lacks %s/%s", r.Pool, r.Device)
		}
	}
	return fmt.Sprintf("%d entries for %d devices", len(own), len(results)), nil
}

func isStatusOf(d resourceapi.AllocatedDeviceStatus, r resourceapi.DeviceRequestAllocationResult) bool {
	if d.Pool != r.Pool || d.Device != r.Device || (d.ShareID == nil) != (r.ShareID == nil) {
		return false
	}
	return d.ShareID == nil || *d.ShareID == string(*r.ShareID)
}

func statusConditions(ctx context.Context, b *bench) (string, error) {
	_, own, err := b.ownStatus(ctx)
	if err != nil {
		return "", err
	}
	count := 0
	for _, d := range own {
		for _, c := range d.Conditions {
			if c.Type == "" || c.Status == "" || c.Reason == "" || c.LastTransitionTime.IsZero() {
				return "", fmt.Errorf("a condition of %s is incomplete: %+v", d.Device, c)
			}
			if c.Type == "Ready" && c.Status != "True" {
				return "", fmt.Errorf("condition Ready of %s, which is prepared, is %s: %s", d.Device, c.Status, c.Message)
			}
			count++
		}
	}
	if count == 0 {
		return "", skipf("the driver writes no conditions")
	}
	return fmt.Sprintf("%d conditions", count), nil
}
