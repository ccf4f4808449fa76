// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/cleave-dra/cleave/e2e/conformance/kube"
)

// restarts are what cases of restarts need.
type restarts struct{ *bench }

var restartCases = []Case{
	{
		Name:   "restart/prepared",
		Rule:   "A restarted driver registers, and prepares a claim that was prepared before with the same answer.",
		Source: "kubeletplugin.DRAPlugin.PrepareResourceClaims: idempotent, \"for example if it gets restarted\"",
		run:    restartPrepared,
	},
	{
		Name:   "restart/unprepare",
		Rule:   "A restarted driver undoes what it prepared before, whether or not it is asked to prepare it again.",
		Source: "kubeletplugin.DRAPlugin.UnprepareResourceClaims: \"The driver might have been restarted in the meantime\"",
		run:    restartUnprepare,
	},
	{
		Name:   "restart/in-use",
		Rule:   "A restarted driver refuses an exclusive device that a claim has from before.",
		Source: "kubeletplugin.DRAPlugin: \"the last line of defense\"; \"the responsibility of the DRA driver to cache\"",
		run:    restartInUse,
	},
	{
		Name:   "restart/slices",
		Rule:   "A restarted driver has published each device as before, with its counters, an allocated one among them.",
		Source: "KEP-4381; KEP-4815: the scheduler counts what allocated devices consume by their slices",
		run:    restartSlices,
	},
}

// restart restarts the driver and waits until it serves.
func (b restarts) restart(ctx context.Context) error {
	if err := b.disconnect(); err != nil {
		return err
	}
	if err := b.Restart(ctx); err != nil {
		return fmt.Errorf("restart the driver: %w", err)
	}
	return kube.Until(ctx, "the restarted driver to serve", func(ctx context.Context) (bool, string, error) {
		err := b.serves(ctx)
		return err == nil, fmt.Sprint(err), nil
	})
}

// serves is nil if the driver answers a call.
func (b restarts) serves(ctx context.Context) error {
	conn, err := b.driver.Connect(ctx)
	if err != nil {
		return err
	}
	_, err = conn.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{})
	return errors.Join(err, conn.Close())
}

// surviving prepares a claim and restarts the driver.
func (b restarts) surviving(ctx context.Context, selectors ...string) (*resourceapi.ResourceClaim, []*drapb.Device, error) {
	if b.Restart == nil {
		return nil, nil, skipf("the suite was given no command that restarts the driver")
	}
	// After a restart, a driver may write its slices again one by one. Until then nothing can be allocated.
	if _, err := b.pools(ctx); err != nil {
		return nil, nil, err
	}
	claim, err := b.claim(ctx, "surviving", selectors...)
	if err != nil {
		return nil, nil, err
	}
	devices, err := b.prepared(ctx, claim)
	if err != nil {
		return nil, nil, err
	}
	return claim, devices, b.restart(ctx)
}

func restartPrepared(ctx context.Context, b *bench) (string, error) {
	claim, before, err := restarts{b}.surviving(ctx)
	if err != nil {
		return "", err
	}
	if err := b.resolve(before); err != nil {
		return "", fmt.Errorf("after a restart: %w", err)
	}
	after, err := b.prepared(ctx, claim)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("before and after %s", describeAll(after)), errors.Join(sameDevices(before, after), b.resolve(after))
}

func restartUnprepare(ctx context.Context, b *bench) (string, error) {
	claim, devices, err := restarts{b}.surviving(ctx)
	if err != nil {
		return "", err
	}
	if err := b.unprepared(ctx, claim); err != nil {
		return "", err
	}
	return "no error, and no CDI device of the claim is left", b.gone(devices, claim)
}

func restartInUse(ctx context.Context, b *bench) (string, error) {
	owner, _, err := restarts{b}.surviving(ctx, exclusive)
	if err != nil {
		return "", err
	}
	rival, err := b.again(ctx, "rival", owner, nil)
	if err != nil {
		return "", err
	}
	return b.refused(ctx, reference(rival))
}

func restartSlices(ctx context.Context, b *bench) (string, error) {
	if b.Restart == nil {
		return "", skipf("the suite was given no command that restarts the driver")
	}
	before, err := b.pools(ctx)
	if err != nil {
		return "", err
	}
	if _, _, err := (restarts{b}).surviving(ctx); err != nil {
		return "", err
	}
	return restarts{b}.unchanged(ctx, before)
}

// unchanged waits until each device of before is published, consuming what it consumed.
func (b restarts) unchanged(ctx context.Context, before []kube.Pool) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, b.SettleTimeout)
	defer cancel()
	count := 0
	err := kube.Until(ctx, "the slices of before", func(ctx context.Context) (bool, string, error) {
		pools, err := b.cluster.Pools(ctx)
		if err != nil {
			return false, "", err
		}
		var state string
		count, state = kept(before, pools)
		return state == "", state, nil
	})
	return fmt.Sprintf("%d devices", count), err
}

// kept counts the devices of before that are published, consuming what they consumed, and says what is missing.
func kept(before, now []kube.Pool) (count int, missing string) {
	for _, old := range before {
		i := slices.IndexFunc(now, func(p kube.Pool) bool { return p.Name == old.Name })
		if i < 0 {
			return count, "pool " + old.Name + " is missing"
		}
		if err := now[i].Complete(); err != nil {
			return count, err.Error()
		}
		devices := now[i].Devices()
		for _, d := range old.Devices() {
			if !slices.ContainsFunc(devices, func(e resourceapi.Device) bool { return sameOffer(d, e) }) {
				return count, "device " + d.Name + " is missing, or consumes other counters"
			}
			count++
		}
	}
	return count, ""
}

func sameOffer(a, b resourceapi.Device) bool {
	return a.Name == b.Name && apiequality.Semantic.DeepEqual(a.ConsumesCounters, b.ConsumesCounters)
}
