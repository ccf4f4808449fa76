// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

var unprepareCases = []Case{
	{
		Name:   "unprepare/idempotent",
		Rule:   "A claim that is unprepared already is unprepared again without an error.",
		Source: "kubeletplugin.DRAPlugin.UnprepareResourceClaims: \"This call must be idempotent\"",
		run:    unprepareIdempotent,
	},
	{
		Name:   "unprepare/unknown",
		Rule:   "A claim that was never prepared, or never existed, is unprepared without an error.",
		Source: "kubeletplugin.DRAPlugin.UnprepareResourceClaims: \"it is not an error if … not currently prepared\"",
		run:    unprepareUnknown,
	},
	{
		Name:   "unprepare/deleted",
		Rule:   "A claim that was deleted from the API server is unprepared.",
		Source: "kubeletplugin.DRAPlugin.UnprepareResourceClaims: \"the original ResourceClaims may have been deleted already\"",
		run:    unprepareDeleted,
	},
	{
		Name:   "unprepare/undone",
		Rule:   "CDI devices that were made for a claim are gone when it is unprepared.",
		Source: "kubeletplugin.DRAPlugin.UnprepareResourceClaims: \"must undo whatever work PrepareResourceClaims did\"",
		run:    unprepareUndone,
	},
	{
		Name:   "unprepare/reused",
		Rule:   "The devices of a claim that is unprepared are prepared for the next claim.",
		Source: "KEP-4381; dra/v1 DRAPlugin.NodeUnprepareResources",
		run:    unprepareReused,
	},
}

func unprepareIdempotent(ctx context.Context, b *bench) (string, error) {
	claim, err := b.claim(ctx, "idempotent")
	if err != nil {
		return "", err
	}
	if _, err := b.prepared(ctx, claim); err != nil {
		return "", err
	}
	for i := range 3 {
		if err := b.unprepared(ctx, claim); err != nil {
			return "", fmt.Errorf("time %d: %w", i+1, err)
		}
	}
	return "three times without an error", nil
}

func unprepareUnknown(ctx context.Context, b *bench) (string, error) {
	claim, err := b.claim(ctx, "never-prepared")
	if err != nil {
		return "", err
	}
	if err := b.release(ctx, reference(claim), &drapb.Claim{Namespace: b.Namespace, Name: "missing", Uid: unknownUID}); err != nil {
		return "", err
	}
	return "no error for two such claims", nil
}

func unprepareDeleted(ctx context.Context, b *bench) (string, error) {
	claim, devices, err := claimPrepared(ctx, b, "deleted")
	if err != nil {
		return "", err
	}
	if err := b.cluster.Delete(ctx, claim.Name, claim.UID); err != nil {
		return "", err
	}
	if err := b.unprepared(ctx, claim); err != nil {
		return "", err
	}
	return "no error", b.gone(devices, claim)
}

// gone checks that no CDI spec has the devices with a claim's UID in their name. Others may stay: a driver need not make a
// CDI device per claim.
func (b *bench) gone(devices []*drapb.Device, claim *resourceapi.ResourceClaim) error {
	if len(b.CDIDirs) == 0 {
		return nil
	}
	own := slices.DeleteFunc(cdiIDs(devices), func(id string) bool { return !strings.Contains(id, string(claim.UID)) })
	left, err := b.driver.Resolved(own)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("CDI specs still have %q after the claim was unprepared", left)
	}
	return nil
}

func unprepareUndone(ctx context.Context, b *bench) (string, error) {
	if len(b.CDIDirs) == 0 {
		return "", skipf("the suite was given no directory of CDI specs")
	}
	claim, devices, err := claimPrepared(ctx, b, "undone")
	if err != nil {
		return "", err
	}
	ids := cdiIDs(devices)
	if len(ids) == 0 {
		return "", skipf("the driver's devices need no CDI device")
	}
	if err := b.unprepared(ctx, claim); err != nil {
		return "", err
	}
	if err := b.gone(devices, claim); err != nil {
		return "", err
	}
	left, err := b.driver.Resolved(ids)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d of %d CDI devices are gone, the others are of no claim", len(ids)-len(left), len(ids)), nil
}

func unprepareReused(ctx context.Context, b *bench) (string, error) {
	first, before, err := claimPrepared(ctx, b, "first", exclusive)
	if err != nil {
		return "", err
	}
	if err := b.unprepared(ctx, first); err != nil {
		return "", err
	}
	if err := b.cluster.Delete(ctx, first.Name, first.UID); err != nil {
		return "", err
	}
	second, err := b.again(ctx, "second", first, nil)
	if err != nil {
		return "", err
	}
	after, err := b.prepared(ctx, second)
	if err != nil {
		return "", err
	}
	if len(before) != len(after) {
		return "", fmt.Errorf("the first claim got %s and the second %s", describeAll(before), describeAll(after))
	}
	return fmt.Sprintf("%d devices, again", len(after)), errors.Join(b.checkDevices(second, after), b.resolve(after))
}
