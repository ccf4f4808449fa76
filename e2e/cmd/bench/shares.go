// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// sharers is how many claims share one GPU in the loaded case: all that MPS takes of today's drivers.
const sharers = 48

// shareBench measures shares.
type shareBench struct{ *bench }

// create creates a claim for a small share of a GPU.
func (b shareBench) create(ctx context.Context, name, device string, kind gpu.Share) (*drapb.Claim, error) {
	amounts := map[string]int64{gpu.CapacityShares: 1, gpu.CapacityMemory: 1 << 30}
	if kind == gpu.MPS {
		amounts[gpu.CapacityCores] = 2
	}
	return b.allocate(ctx, name, workload.OneShare(b.cluster.NodeName(), device+"-"+string(kind), amounts))
}

// measure measures shares of one GPU: by time slices, and by an MPS server that runs already.
func (b shareBench) measure(ctx context.Context, r *report) error {
	for _, kind := range []struct {
		share gpu.Share
		times float64
	}{{gpu.TimeSlice, 1.5}, {gpu.MPS, 2}} {
		if err := b.measureKind(ctx, r, kind.share, kind.times); err != nil {
			return err
		}
	}
	return nil
}

func (b shareBench) measureKind(ctx context.Context, r *report, kind gpu.Share, times float64) error {
	var all []*drapb.Claim
	for i := range sharers {
		claim, err := b.create(ctx, fmt.Sprintf("%s-%d", kind, i), b.devices[0], kind)
		if err != nil {
			return err
		}
		all = append(all, claim)
	}
	measured, others := all[:1], all[1:]
	if kind == gpu.MPS { // somebody has the server run
		start := time.Now()
		if err := prepare(ctx, b.plugin, others[0]); err != nil {
			return err
		}
		r.add(result{Name: "mps share: first of a GPU, starts the server", Value: millis(time.Since(start)), Unit: "ms"})
		others = others[1:]
	}
	idle, err := b.singles(ctx, measured)
	if err != nil {
		return err
	}
	r.addSingles(string(kind)+" share: ", idle, times*millis(idle.floor.percentile(50)), fmt.Sprintf("%g x floor alongside it", times))
	for _, c := range others {
		if err := prepare(ctx, b.plugin, c); err != nil {
			return err
		}
	}
	loaded, err := b.singles(ctx, measured)
	if err != nil {
		return err
	}
	r.addDrifted(fmt.Sprintf("%s share, with %d prepared: prepare p50", kind, sharers-1), loaded.prepare, idle.prepare, loaded.drift(idle),
		"1.3 x with none, by the floor")
	_, err = b.each(ctx, all, unprepare)
	return err
}
