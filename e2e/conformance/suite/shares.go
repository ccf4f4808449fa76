// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/cleave-dra/cleave/e2e/conformance/kube"
)

// sharers are what cases of shared devices need.
type sharers struct{ *bench }

var shareCases = []Case{
	{
		Name:   "shares/two-claims",
		Rule:   "Two claims with shares of one device are prepared, and one is released without the other.",
		Source: "resource/v1 Device.allowMultipleAllocations, DeviceRequestAllocationResult.shareID; KEP-5075",
		run:    sharesTwoClaims,
	},
	{
		Name:   "shares/one-claim",
		Rule:   "A claim of which two requests get shares of one device is prepared for both.",
		Source: "resource/v1 Device.allowMultipleAllocations: \"allowed to be allocated to multiple DeviceRequests\"; KEP-5075",
		run:    sharesOneClaim,
	},
	{
		Name:   "shares/capacity",
		Rule:   "A device has the capacity that its shares consume together, also while they are prepared.",
		Source: "resource/v1 consumedCapacity: \"must not exceed the DeviceCapacity's Value\"; KEP-5075",
		run:    sharesCapacity,
	},
}

// pair makes two claims with shares of one device.
func (b sharers) pair(ctx context.Context) ([]*resourceapi.ResourceClaim, error) {
	for _, class := range b.Classes {
		found, err := b.cluster.Fit(ctx, selected(exactly(class), []string{multiple}), selected(exactly(class), []string{multiple}))
		if errors.Is(err, kube.ErrNoFit) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !sameDevice(found[0].Devices.Results[0], found[1].Devices.Results[0]) {
			continue
		}
		var claims []*resourceapi.ResourceClaim
		for i, allocation := range found {
			claim, err := b.allocated(ctx, fmt.Sprintf("share-%d", i), exactly(class), allocation)
			if err != nil {
				return nil, err
			}
			claims = append(claims, claim)
		}
		return claims, nil
	}
	return nil, skipf("none of the classes %q has a device that two claims can share", b.Classes)
}

func sameDevice(a, b resourceapi.DeviceRequestAllocationResult) bool {
	return a.Driver == b.Driver && a.Pool == b.Pool && a.Device == b.Device
}

func sharesTwoClaims(ctx context.Context, b *bench) (string, error) {
	claims, err := sharers{b}.pair(ctx)
	if err != nil {
		return "", err
	}
	first, err := admins{b}.preparedRight(ctx, claims[0])
	if err != nil {
		return "", err
	}
	second, err := admins{b}.preparedRight(ctx, claims[1])
	if err != nil {
		return "", err
	}
	if err := (admins{b}).still(ctx, claims[0], first, "the other share was prepared"); err != nil {
		return "", err
	}
	if err := b.unprepared(ctx, claims[0]); err != nil {
		return "", err
	}
	note := "two shares of " + b.resultsOf(claims[0])[0].Device
	return note, admins{b}.still(ctx, claims[1], second, "the other share was unprepared")
}

func sharesOneClaim(ctx context.Context, b *bench) (string, error) {
	claim, err := b.claimOf(ctx, "both", func(class string) resourceapi.ResourceClaimSpec {
		return requests(
			resourceapi.DeviceRequest{Name: "first", Exactly: exact(class)}, resourceapi.DeviceRequest{Name: "second", Exactly: exact(class)})
	}, multiple)
	if err != nil {
		return "", err
	}
	results := b.resultsOf(claim)
	if !sameDevice(results[0], results[1]) {
		return "", skipf("the scheduler allocates the two requests shares of two devices")
	}
	devices, err := admins{b}.preparedRight(ctx, claim)
	if err != nil {
		return "", err
	}
	for _, r := range results {
		if len(devices) > 0 && !slices.ContainsFunc(devices, func(d *drapb.Device) bool {
			return isOf(d, r) && (len(d.RequestNames) == 0 || slices.Contains(d.RequestNames, r.Request))
		}) {
			return "", fmt.Errorf("request %s got none of %s", r.Request, describeAll(devices))
		}
	}
	return fmt.Sprintf("prepared as %s", describeAll(devices)), nil
}

func sharesCapacity(ctx context.Context, b *bench) (string, error) {
	claims, err := sharers{b}.pair(ctx)
	if err != nil {
		return "", err
	}
	for _, c := range claims {
		if _, err := (admins{b}).preparedRight(ctx, c); err != nil {
			return "", err
		}
	}
	pools, err := b.pools(ctx)
	if err != nil {
		return "", err
	}
	allocations, err := b.cluster.Allocations(ctx)
	if err != nil {
		return "", err
	}
	checked := 0
	for _, p := range pools {
		for _, d := range p.Devices() {
			consumed := sharers{b}.consumed(p.Name, d.Name, allocations)
			for _, name := range slices.Sorted(maps.Keys(consumed)) {
				amount, there := consumed[name], d.Capacity[name].Value
				if amount.Cmp(there) > 0 {
					return "", fmt.Errorf("shares of device %s consume %s of %s, which has %s", d.Name, amount.String(), name, there.String())
				}
				checked++
			}
		}
	}
	if checked == 0 {
		return "", skipf("shares of the driver's devices consume no capacity")
	}
	return fmt.Sprintf("%d capacities are consumed, none beyond its value", checked), nil
}

// consumed sums what all claims consume of a device.
func (b sharers) consumed(pool, device string,
	allocations []resourceapi.DeviceRequestAllocationResult) map[resourceapi.QualifiedName]resource.Quantity {
	sums := map[resourceapi.QualifiedName]resource.Quantity{}
	for _, r := range allocations {
		if r.Driver != b.Driver || r.Pool != pool || r.Device != device {
			continue
		}
		for name, amount := range r.ConsumedCapacity {
			sum := sums[name]
			sum.Add(amount)
			sums[name] = sum
		}
	}
	return sums
}
