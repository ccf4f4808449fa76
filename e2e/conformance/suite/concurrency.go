// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"
	"sync"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// atOnce is how many calls are made concurrently.
const atOnce = 8

var concurrencyCases = []Case{
	{
		Name:   "concurrent/claims",
		Rule:   "Claims that are prepared and unprepared by concurrent calls get their own devices.",
		Source: "kubeletplugin.Serialize; kubelet calls drivers for several pods at once",
		run:    concurrentClaims,
	},
	{
		Name:   "concurrent/same-claim",
		Rule:   "Concurrent calls for one claim, as of two pods that share it, get the same answer.",
		Source: "kubeletplugin.DRAPlugin.PrepareResourceClaims: \"This call must be idempotent\"; KEP-4381",
		run:    concurrentSameClaim,
	},
}

// together runs n functions concurrently and waits for all of them.
func together(n int, do func(i int) error) error {
	failed := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { failed[i] = do(i) })
	}
	wg.Wait()
	return errors.Join(failed...)
}

func concurrentClaims(ctx context.Context, b *bench) (string, error) {
	claims, err := b.some(ctx, 2, atOnce)
	if err != nil {
		return "", err
	}
	if _, err := b.connect(ctx); err != nil { // before goroutines share it
		return "", err
	}
	for range 2 {
		if err := together(len(claims), func(i int) error {
			devices, err := b.prepared(ctx, claims[i])
			if err != nil {
				return err
			}
			return errors.Join(b.checkDevices(claims[i], devices), b.resolve(devices))
		}); err != nil {
			return "", err
		}
		if err := together(len(claims), func(i int) error { return b.unprepared(ctx, claims[i]) }); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d claims at once, twice", len(claims)), nil
}

func concurrentSameClaim(ctx context.Context, b *bench) (string, error) {
	claim, err := b.claim(ctx, "shared")
	if err != nil {
		return "", err
	}
	if _, err := b.connect(ctx); err != nil {
		return "", err
	}
	answers := make([][]*drapb.Device, atOnce)
	if err := together(atOnce, func(i int) (err error) {
		answers[i], err = b.prepared(ctx, claim)
		return err
	}); err != nil {
		return "", err
	}
	for _, a := range answers[1:] {
		if err := sameDevices(answers[0], a); err != nil {
			return "", err
		}
	}
	if err := errors.Join(b.checkDevices(claim, answers[0]), b.resolve(answers[0])); err != nil {
		return "", err
	}
	if err := together(atOnce, func(int) error { return b.unprepared(ctx, claim) }); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d calls at once", atOnce), nil
}
