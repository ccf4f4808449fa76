// SPDX-License-Identifier: Apache-2.0

package packing_test

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

// exhaustive is the least loss of all sets of holders whose release makes room.
func exhaustive(t *testing.T, s *packing.State, holders []packing.Holder, budgets []int, r packing.Request) (best packing.Loss, fits bool) {
	t.Helper()
	for set := range uint(1) << len(holders) {
		now := s.Clone()
		loss := packing.Loss{Priority: -1 << 31, Since: 1<<63 - 1}
		left := slices.Clone(budgets)
		for i := range holders {
			if set&(1<<i) == 0 {
				continue
			}
			h := &holders[i]
			now.Release(h.Uses...)
			for _, b := range h.Budgets {
				if left[b]--; left[b] < 0 {
					loss.Breaks++
				}
			}
			loss.Priority = max(loss.Priority, h.Priority)
			loss.Pods += h.Pods
			loss.Since = min(loss.Since, h.Since)
			for _, u := range h.Uses {
				if d := &s.Model().Devices[u.Device]; d.Shared {
					loss.Units++
				} else {
					loss.Units += d.Size
				}
			}
		}
		if set == 0 {
			continue
		}
		if _, ok, err := now.Fit(r); err != nil {
			t.Fatal(err)
		} else if ok && (!fits || loss.Compare(best) < 0) {
			best, fits = loss, true
		}
	}
	return best, fits
}

// TestEvict_Exhaustive compares with all sets of victims, on nodes that are filled at random.
func TestEvict_Exhaustive(t *testing.T) {
	const most = 10
	worse, cases := 0, 0
	for _, model := range []string{"hgx-h100", "a30", "gb200-nvl4", "a100-pcie-nvlink-pairs"} {
		empty := emptyState(t, model)
		for seed := range uint64(100) {
			random := rand.New(rand.NewPCG(seed, 2))
			s := empty.Clone()
			budgets := []int{random.IntN(3), random.IntN(3)}
			all := shapes(s.Model())
			var holders []packing.Holder
			for range 200 {
				uses, ok, err := s.Fit(request(s, all[random.IntN(len(all))], 1+random.IntN(2)))
				if !ok || err != nil {
					continue
				}
				s.Allocate(uses...)
				if len(holders) < most && random.IntN(4) > 0 { // the others are not to be evicted
					h := packing.Holder{Uses: uses, Priority: int32(random.IntN(3)), Pods: 1 + random.IntN(2), Since: int64(random.IntN(5))}
					for range random.IntN(h.Pods + 1) {
						h.Budgets = append(h.Budgets, random.IntN(len(budgets)))
					}
					holders = append(holders, h)
				}
			}
			r := request(s, all[random.IntN(len(all))], 1+random.IntN(2))
			if _, ok, err := s.Fit(r); ok || err != nil {
				continue
			}
			before := s.Clone()
			victims, loss, ok, err := s.Evict(holders, budgets, r)
			if err != nil {
				t.Fatal(err)
			}
			if !s.Equal(before) {
				t.Fatalf("%s, seed %d: the state has changed", model, seed)
			}
			best, can := exhaustive(t, s, holders, budgets, r)
			if ok != can {
				t.Fatalf("%s, seed %d: fits %t, want %t", model, seed, ok, can)
			}
			if !ok {
				continue
			}
			cases++
			for _, v := range victims {
				s.Release(holders[v].Uses...)
			}
			if _, fits, _ := s.Fit(r); !fits {
				t.Fatalf("%s, seed %d: victims %v make no room", model, seed, victims)
			}
			if loss.Compare(best) != 0 {
				worse++
				t.Logf("%s, seed %d: %d victims: %s", model, seed, bits.OnesCount(uint(len(victims))), cmp.Diff(best, loss))
			}
		}
	}
	t.Logf("%d cases, %d worse", cases, worse)
	if cases < 50 || worse > cases/50 {
		t.Errorf("%d of %d are worse than the best", worse, cases)
	}
}
