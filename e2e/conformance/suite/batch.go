// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

var batchCases = []Case{
	{
		Name:   "batch/several",
		Rule:   "Several claims of one call are prepared and unprepared, each with an entry.",
		Source: "dra/v1 NodePrepareResourcesResponse.claims, NodeUnprepareResourcesResponse.claims",
		run:    batchSeveral,
	},
	{
		Name:   "batch/one-bad",
		Rule:   "A claim that cannot be prepared fails alone; the others of the call are prepared.",
		Source: "kubeletplugin.DRAPlugin.PrepareResourceClaims: \"For each claim, preparation can be either successful … or … failed\"",
		run:    batchOneBad,
	},
	{
		Name:   "batch/one-missing",
		Rule:   "A claim that does not exist is not prepared, and the others of the call are, with it or by the next call.",
		Source: "dra/v1 DRAPlugin.NodePrepareResources: \"If an error is returned, the response is ignored\"",
		run:    batchOneMissing,
	},
}

// some makes up to n claims, as many as there are devices for; fewer than least skips the case.
func (b *bench) some(ctx context.Context, least, n int) ([]*resourceapi.ResourceClaim, error) {
	var claims []*resourceapi.ResourceClaim
	for i := range n {
		claim, err := b.claim(ctx, fmt.Sprintf("claim-%d", i))
		if skip := (skipped{}); errors.As(err, &skip) {
			break
		}
		if err != nil {
			return nil, err
		}
		claims = append(claims, claim)
	}
	if len(claims) < least {
		return nil, skipf("%d devices are free, and the case needs %d", len(claims), least)
	}
	return claims, nil
}

func (b *bench) checkAll(answer map[string]*drapb.NodePrepareResourceResponse, claims []*resourceapi.ResourceClaim) error {
	var failed []error
	for _, claim := range claims {
		devices, err := devicesOf(answer, claim.Name, claim.UID)
		if err == nil {
			err = errors.Join(b.checkDevices(claim, devices), b.resolve(devices))
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

func batchSeveral(ctx context.Context, b *bench) (string, error) {
	claims, err := b.some(ctx, 2, 3)
	if err != nil {
		return "", err
	}
	answer, err := b.call(ctx, references(claims)...)
	if err != nil {
		return "", err
	}
	if err := b.checkAll(answer, claims); err != nil {
		return "", err
	}
	if err := b.release(ctx, references(claims)...); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d claims by one call each", len(claims)), nil
}

func batchOneBad(ctx context.Context, b *bench) (string, error) {
	bad, err := b.badClaim(ctx)
	if err != nil {
		return "", err
	}
	if _, err := b.refused(ctx, reference(bad)); err != nil {
		return "", skipf("the suite knows no claim that the driver refuses: prepare/parameters")
	}
	good, err := b.some(ctx, 2, 2)
	if err != nil {
		return "", err
	}
	answer, err := b.call(ctx, reference(good[0]), reference(bad), reference(good[1]))
	if err != nil {
		return "", fmt.Errorf("one claim of three is bad, and the call failed: %w", err)
	}
	one, ok := answer[string(bad.UID)]
	if !ok || one.GetError() == "" {
		return "", fmt.Errorf("the bad claim got %v, want an error in its entry", one)
	}
	if err := b.checkAll(answer, good); err != nil {
		return "", err
	}
	return one.GetError(), nil
}

func batchOneMissing(ctx context.Context, b *bench) (string, error) {
	good, err := b.some(ctx, 1, 2)
	if err != nil {
		return "", err
	}
	missing := &drapb.Claim{Namespace: b.Namespace, Name: "missing", Uid: unknownUID}
	answer, err := b.call(ctx, append([]*drapb.Claim{missing}, references(good)...)...)
	if err != nil {
		note := err.Error()
		if answer, err = b.call(ctx, references(good)...); err != nil {
			return "", err
		}
		return "the call failed, the next one without that claim did not: " + note, b.checkAll(answer, good)
	}
	one, ok := answer[missing.Uid]
	if !ok || one.GetError() == "" {
		return "", fmt.Errorf("the claim that does not exist got %v, want an error in its entry", one)
	}
	return one.GetError(), b.checkAll(answer, good)
}
