// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/e2e/conformance/kube"
)

// damages are what cases of damaged devices need.
type damages struct{ *bench }

// skew is how far the clocks of node and suite may be apart.
const skew = time.Minute

var taintCases = []Case{
	{
		Name:   "taints/published",
		Rule:   "Taints of devices are of different keys and effects, and were not added in the future.",
		Source: "resource/v1 DeviceTaint; KEP-5055",
		run:    taintsPublished,
	},
	{
		Name:   "taints/tolerated",
		Rule:   "A claim that tolerates taints is prepared like any other.",
		Source: "resource/v1 DeviceRequestAllocationResult.tolerations; KEP-5055",
		run:    taintsTolerated,
	},
	{
		Name:   "taints/damaged",
		Rule:   "A device that becomes unhealthy stays published, with a taint, until it is healthy again.",
		Source: "resource/v1 Device.taints; KEP-5055",
		run:    taintsDamaged,
	},
}

func taintsPublished(ctx context.Context, b *bench) (string, error) {
	pools, err := b.pools(ctx)
	if err != nil {
		return "", err
	}
	taints := 0
	for _, p := range pools {
		for _, d := range p.Devices() {
			if err := checkTaints(d, time.Now()); err != nil {
				return "", fmt.Errorf("device %s of pool %s: %w", d.Name, p.Name, err)
			}
			taints += len(d.Taints)
		}
	}
	if taints == 0 {
		return "", skipf("no device has a taint now")
	}
	return fmt.Sprintf("%d taints", taints), nil
}

func checkTaints(d resourceapi.Device, now time.Time) error {
	for i, t := range d.Taints {
		if slices.ContainsFunc(d.Taints[:i], func(o resourceapi.DeviceTaint) bool { return o.Key == t.Key && o.Effect == t.Effect }) {
			return fmt.Errorf("taint %s:%s is there twice", t.Key, t.Effect)
		}
		if t.TimeAdded != nil && t.TimeAdded.After(now.Add(skew)) {
			return fmt.Errorf("taint %s:%s is to be added at %s", t.Key, t.Effect, t.TimeAdded)
		}
	}
	return nil
}

func taintsTolerated(ctx context.Context, b *bench) (string, error) {
	claim, err := b.claimOf(ctx, "tolerant", func(class string) resourceapi.ResourceClaimSpec {
		spec := exactly(class)
		spec.Devices.Requests[0].Exactly.Tolerations = []resourceapi.DeviceToleration{{
			Key: "dra-conformance.invalid/any", Operator: resourceapi.DeviceTolerationOpExists,
		}}
		return spec
	})
	if err != nil {
		return "", err
	}
	devices, err := admins{b}.preparedRight(ctx, claim)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d devices, with %d tolerations in the allocation", len(devices), len(b.resultsOf(claim)[0].Tolerations)), nil
}

// damage makes the device of a prepared claim unhealthy until the case ends, or repair is called.
func (b damages) damage(ctx context.Context) (pool, device string, repair func(context.Context) error, err error) {
	if b.Damage == nil || b.Repair == nil {
		return "", "", nil, skipf("the suite was given no commands that damage and repair a device")
	}
	claim, err := b.claim(ctx, "damaged", exclusive)
	if err != nil {
		return "", "", nil, err
	}
	if _, err := admins(b).preparedRight(ctx, claim); err != nil {
		return "", "", nil, err
	}
	r := b.resultsOf(claim)[0]
	repaired := false
	repair = func(ctx context.Context) error {
		if repaired {
			return nil
		}
		repaired = true
		return b.Repair(ctx, r.Pool, r.Device)
	}
	b.undo = append(b.undo, repair)
	return r.Pool, r.Device, repair, b.Damage(ctx, r.Pool, r.Device)
}

func taintsDamaged(ctx context.Context, b *bench) (string, error) {
	pool, device, repair, err := damages{b}.damage(ctx)
	if err != nil {
		return "", err
	}
	taints, err := damages{b}.waitTaints(ctx, pool, device, true)
	if err != nil {
		return "", err
	}
	if err := repair(ctx); err != nil {
		return "", err
	}
	if _, err := (damages{b}).waitTaints(ctx, pool, device, false); err != nil {
		return "", err
	}
	return fmt.Sprintf("tainted %s:%s, and no more after the repair", taints[0].Key, taints[0].Effect), nil
}

// waitTaints waits until a device has a taint, or none. Meanwhile it has to be published.
func (b damages) waitTaints(ctx context.Context, pool, device string, some bool) ([]resourceapi.DeviceTaint, error) {
	ctx, cancel := context.WithTimeout(ctx, b.SettleTimeout)
	defer cancel()
	var taints []resourceapi.DeviceTaint
	err := kube.Until(ctx, "device "+device+" to change its taints", func(ctx context.Context) (bool, string, error) {
		pools, err := b.cluster.Pools(ctx)
		if err != nil {
			return false, "", err
		}
		for _, p := range pools {
			for _, d := range p.Devices() {
				if p.Name == pool && d.Name == device {
					if err := checkTaints(d, time.Now()); err != nil {
						return false, "", err
					}
					taints = d.Taints
					return len(taints) > 0 == some, fmt.Sprintf("taints %v", taints), nil
				}
			}
		}
		if slices.ContainsFunc(pools, func(p kube.Pool) bool { return p.Name == pool && p.Complete() != nil }) {
			return false, "pool " + pool + " is incomplete", nil
		}
		return false, "", errors.New("it is no longer published, and what it consumes is given to others")
	})
	return taints, err
}
