// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// truth is what the kubelet knows: which claim has which GPU.
type truth struct {
	mu    sync.Mutex
	owner map[string]types.UID
}

// take enters a claim that was prepared and fails if another one has one of its GPUs.
func (x *truth) take(t *testing.T, claim *resourceapi.ResourceClaim) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range claim.Status.Allocation.Devices.Results {
		if other, ok := x.owner[r.Device]; ok && other != claim.UID {
			t.Errorf("GPU %s was given to claim %s while claim %s has it", r.Device, claim.UID, other)
		}
		x.owner[r.Device] = claim.UID
	}
}

// give strikes a claim out that is about to be unprepared.
func (x *truth) give(claim *resourceapi.ResourceClaim) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range claim.Status.Allocation.Devices.Results {
		delete(x.owner, r.Device)
	}
}

// churn prepares and unprepares claims from many goroutines on any of the engines.
func churn(t *testing.T, engines []*bed, rounds int) (prepared int) {
	t.Helper()
	x := &truth{owner: map[string]types.UID{}}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, e := range engines { // the API server knows no claim below, so only the driver keeps Reconcile from freeing it
		for i := range 4 {
			e.hardware.pids[gpuName(i)] = []int{1}
		}
	}
	for worker := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(worker)))
			for round := range rounds {
				claim := claimOn(types.UID(fmt.Sprintf("w%d-%d", worker, round)), r.Perm(4)[:1+r.IntN(3)]...)
				e := engines[r.IntN(len(engines))]
				if _, err := e.Prepare(context.Background(), claim); err != nil {
					if !strings.Contains(err.Error(), "is allocated to claim") {
						t.Errorf("Prepare of %s: %v", claim.UID, err)
					}
					continue
				}
				x.take(t, claim)
				e.Reconcile(context.Background(), &fakeAPI{})
				mu.Lock()
				prepared++
				mu.Unlock()
				again := engines[r.IntN(len(engines))]
				if _, err := again.Prepare(context.Background(), claim); err != nil {
					t.Errorf("second Prepare of %s: %v", claim.UID, err)
				}
				x.give(claim)
				last := engines[r.IntN(len(engines))]
				if err := last.Unprepare(context.Background(), refOf(claim)); err != nil {
					t.Errorf("Unprepare of %s: %v", claim.UID, err)
				}
			}
		})
	}
	wg.Wait()
	return prepared
}

func TestPrepare_Churn(t *testing.T) {
	tests := map[string]int{"one process": 1, "two processes": 2, "three processes": 3}
	for name, processes := range tests {
		t.Run(name, func(t *testing.T) {
			engines := []*bed{newBed(t)}
			for len(engines) < processes {
				engines = append(engines, engines[0].another().start())
			}
			if prepared := churn(t, engines, 60); prepared == 0 {
				t.Error("no claim was prepared: nothing was tested")
			}
			wantDisk(t, engines[0])
			for i, e := range engines { // nothing stayed behind in memory either
				mustPrepare(t, e.Preparer, claimOn("last", 0, 1, 2, 3))
				mustUnprepare(t, e.Preparer, claimOn("last", 0, 1, 2, 3))
				if got := e.Ledger.Records(); len(got) != 0 {
					t.Errorf("process %d still knows claims %v", i, got)
				}
			}
		})
	}
}
