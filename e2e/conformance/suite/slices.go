// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/e2e/conformance/kube"
)

var sliceCases = []Case{
	{
		Name:   "slices/complete",
		Rule:   "Each pool has as many slices of its newest generation as each of them says, and none of an older one.",
		Source: "resource/v1 ResourcePool.generation, .resourceSliceCount",
		run:    slicesComplete,
	},
	{
		Name:   "slices/accepted",
		Rule:   "The API server takes each slice as it is published, with all of its fields.",
		Source: "resource/v1 ResourceSlice; k8s.io/kubernetes/pkg/apis/resource/validation",
		run:    slicesAccepted,
	},
	{
		Name:   "slices/names",
		Rule:   "Devices and counter sets have names that are unique in their pool, across slices.",
		Source: "resource/v1 Device.name, CounterSet.name; KEP-4381, KEP-4815",
		run:    slicesNames,
	},
	{
		Name:   "slices/counters",
		Rule:   "Devices consume counters that their pool has, and none more than there is, nor do allocated devices together.",
		Source: "resource/v1 DeviceCounterConsumption; KEP-4815",
		run:    slicesCounters,
	},
	{
		Name:   "slices/allocatable",
		Rule:   "The scheduler can allocate each device by itself on the node.",
		Source: "KEP-4381; k8s.io/dynamic-resource-allocation/structured",
		run:    slicesAllocatable,
	},
}

// pools waits until all pools are complete, as a driver may be publishing, and returns them.
func (b *bench) pools(ctx context.Context) ([]kube.Pool, error) {
	ctx, cancel := context.WithTimeout(ctx, b.SettleTimeout)
	defer cancel()
	var pools []kube.Pool
	err := kube.Until(ctx, "complete pools", func(ctx context.Context) (bool, string, error) {
		var err error
		if pools, err = b.cluster.Pools(ctx); err != nil {
			return false, "", err
		}
		if len(pools) == 0 {
			return false, "no ResourceSlice of the driver for the node", nil
		}
		var incomplete []error
		for _, p := range pools {
			incomplete = append(incomplete, p.Complete())
		}
		err = errors.Join(incomplete...)
		return err == nil, fmt.Sprint(err), nil
	})
	return pools, err
}

func slicesComplete(ctx context.Context, b *bench) (string, error) {
	pools, err := b.pools(ctx)
	if err != nil {
		return "", err
	}
	count, devices := 0, 0
	for _, p := range pools {
		count, devices = count+len(p.Slices), devices+len(p.Devices())
	}
	return fmt.Sprintf("%d pools, %d slices, %d devices", len(pools), count, devices), nil
}

func slicesAccepted(ctx context.Context, b *bench) (string, error) {
	published, err := b.cluster.Slices(ctx)
	if err != nil {
		return "", err
	}
	if len(published) == 0 {
		return "", errors.New("no ResourceSlice is published")
	}
	for _, s := range published {
		if err := b.cluster.Accept(ctx, s); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d slices, by dry run", len(published)), nil
}

func slicesNames(ctx context.Context, b *bench) (string, error) {
	pools, err := b.pools(ctx)
	if err != nil {
		return "", err
	}
	names := 0
	for _, p := range pools {
		seen := map[string]bool{}
		for _, d := range p.Devices() {
			if seen["device "+d.Name] {
				return "", fmt.Errorf("pool %s has device %s twice", p.Name, d.Name)
			}
			seen["device "+d.Name] = true
		}
		for _, set := range p.CounterSets() {
			if seen["counters "+set.Name] {
				return "", fmt.Errorf("pool %s has counter set %s twice", p.Name, set.Name)
			}
			seen["counters "+set.Name] = true
		}
		names += len(seen)
	}
	return fmt.Sprintf("%d names", names), nil
}

func slicesCounters(ctx context.Context, b *bench) (string, error) {
	pools, err := b.pools(ctx)
	if err != nil {
		return "", err
	}
	allocations, err := b.cluster.Allocations(ctx)
	if err != nil {
		return "", err
	}
	sets := 0
	for _, p := range pools {
		sets += len(p.CounterSets())
		if err := checkCounters(p, b.allocatedIn(p, allocations)); err != nil {
			return "", err
		}
	}
	if sets == 0 && !slices.ContainsFunc(pools, func(p kube.Pool) bool {
		return slices.ContainsFunc(p.Devices(), func(d resourceapi.Device) bool { return len(d.ConsumesCounters) > 0 })
	}) {
		return "", skipf("no pool has counters")
	}
	return fmt.Sprintf("%d counter sets", sets), nil
}

// allocatedIn are the names of a pool's devices that claims have. Admin access consumes nothing, and a device that is
// shared consumes once.
func (b *bench) allocatedIn(p kube.Pool, allocations []resourceapi.DeviceRequestAllocationResult) map[string]bool {
	names := map[string]bool{}
	for _, r := range allocations {
		if r.Driver == b.Driver && r.Pool == p.Name && (r.AdminAccess == nil || !*r.AdminAccess) {
			names[r.Device] = true
		}
	}
	return names
}

// checkCounters compares what devices consume, each alone and those that are allocated together, with what there is.
func checkCounters(p kube.Pool, allocated map[string]bool) error {
	type key struct{ set, counter string }
	there, left := map[key]resource.Quantity{}, map[key]resource.Quantity{}
	for _, set := range p.CounterSets() {
		for name, counter := range set.Counters {
			there[key{set.Name, name}], left[key{set.Name, name}] = counter.Value, counter.Value.DeepCopy()
		}
	}
	for _, d := range p.Devices() {
		for _, consumption := range d.ConsumesCounters {
			for _, name := range slices.Sorted(maps.Keys(consumption.Counters)) {
				k, amount := key{consumption.CounterSet, name}, consumption.Counters[name].Value
				value, ok := there[k]
				if !ok {
					return fmt.Errorf("device %s of pool %s consumes counter %s of set %s, which the pool lacks", d.Name, p.Name, name, k.set)
				}
				if amount.Cmp(value) > 0 {
					return fmt.Errorf("device %s of pool %s consumes %s of counter %s of set %s, which has %s", d.Name, p.Name, amount.String(), name,
						k.set, value.String())
				}
				if allocated[d.Name] {
					rest := left[k]
					rest.Sub(amount)
					left[k] = rest
				}
			}
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(left), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.set, b.set), cmp.Compare(a.counter, b.counter))
	}) {
		if rest := left[k]; rest.Sign() < 0 {
			return fmt.Errorf("the allocated devices of pool %s consume more of counter %s of set %s than there is: %s are left", p.Name, k.counter,
				k.set, rest.String())
		}
	}
	return nil
}

func slicesAllocatable(ctx context.Context, b *bench) (string, error) {
	pools, err := b.pools(ctx)
	if err != nil {
		return "", err
	}
	devices := 0
	for _, p := range pools {
		misfits, err := b.cluster.Misfits(ctx, p)
		if err != nil {
			return "", err
		}
		if len(misfits) > 0 {
			name := slices.Sorted(maps.Keys(misfits))[0]
			return "", fmt.Errorf("device %s of pool %s, one of %d, can never be allocated on the node: %w", name, p.Name,
				len(misfits), misfits[name])
		}
		devices += len(p.Devices())
	}
	return fmt.Sprintf("%d devices, one by one", devices), nil
}
