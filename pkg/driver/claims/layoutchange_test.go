// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
)

// turningHardware is a session that calls a function before it creates a partition.
type turningHardware struct {
	*nvml.Session
	node     *policy.Node
	creating func()
}

func (h *turningHardware) Node() *policy.Node { return h.node }

func (h *turningHardware) CreatePartition(ctx context.Context, s gpu.Shape) (gpu.Partition, error) {
	h.creating()
	return h.Session.CreatePartition(ctx, s)
}

// While one GPU is partitioned, others come to offer something else, or the plugin ends: they are left as they are.
func TestLayout_PolicyChangesMeanwhile(t *testing.T) {
	first, whole, other := policy.Offer{Partitions: balanced}, policy.Offer{Whole: true}, policy.Offer{Partitions: cutInto(place(5, 0, 4))}
	laid := list("0 14@4", "0 19@6", "0 9@0")
	both := append(list("1 14@4", "1 19@6", "1 9@0"), laid...)
	for name, tt := range map[string]struct {
		then        policy.Offer // of the second GPU
		ends        bool
		want, again []string // what there is, and after the next plan
	}{
		"still the same":  {first, false, both, both},
		"whole GPU":       {whole, false, laid, laid},
		"another layout":  {other, false, laid, append(list("1 5@0"), laid...)},
		"the plugin ends": {first, true, laid, both},
	} {
		t.Run(name, func(t *testing.T) {
			b := newSimBed(t, "hgx-h100")
			ctx, end := context.WithCancel(t.Context())
			defer end()
			offering := func(second policy.Offer) *policy.Node {
				offers := make([]policy.Offer, len(b.offers))
				offers[0], offers[1] = first, second
				return &policy.Node{Node: b.session.Node(), Offers: offers}
			}
			planned := offering(first)
			h := &turningHardware{Session: b.session, node: planned}
			h.creating = func() {
				if h.node = offering(tt.then); tt.ends {
					end()
				}
			}
			b.SetHardware(h, b.specs)
			if problems := b.Partitions.KeepLayouts(ctx, planned); len(problems) > 0 {
				t.Error(problems)
			}
			b.want(tt.want, nil, nil)
			b.kept()
			b.want(tt.again, nil, nil)
		})
	}
}

// A claim that is allocated and not prepared keeps the partition that it was allocated, and nothing that is in its way.
func TestLayout_NotPreparedYet(t *testing.T) {
	const mps = "-" + string(gpu.MPS)
	for name, tt := range map[string]struct {
		device string   // the end of its name
		mig    []int    // the profile and start of a partition
		of     string   // the driver name; empty for the chosen one
		blind  bool     // it was noted before the GPUs were known
		left   []string // of the layout
	}{
		"whole GPU":                           {left: list()},
		"share of the GPU":                    {device: mps, left: list()},
		"partition in their way":              {mig: []int{9, 4}, left: list()},
		"partition of the layout":             {mig: []int{14, 4}, left: list("0 14@4")},
		"share of it":                         {device: mps, mig: []int{14, 4}, left: list("0 14@4")},
		"of another driver name":              {mig: []int{14, 4}, of: nameB, left: list("0 14@4")},
		"whole GPU, of another driver name":   {of: nameB, left: list()},
		"noted before the GPUs were known":    {mig: []int{14, 4}, blind: true, left: list("0 14@4")},
		"whole, noted before GPUs were known": {blind: true, left: list()},
		"admin access to a partition of it":   {device: "!admin", mig: []int{14, 4}, left: list()},
	} {
		t.Run(name, func(t *testing.T) {
			b := newSimBed(t, "hgx-h100")
			b.lay(balanced)
			b.prepare("running", b.name(0, 19, 6))
			claim := deviceClaim("c", b.name(0, tt.mig...)+tt.device)
			if tt.of != "" {
				claim = forDriver(tt.of, claim)
				b.Ledger.Names.Add(tt.of)
			}
			node := func() *gpu.Node { return b.session.Node() }
			if tt.blind {
				node = func() *gpu.Node { return nil }
			}
			must(t, NewFollower(b.Ledger, &fakeAPI{claims: []*resourceapi.ResourceClaim{claim}}, node).List(t.Context()))
			b.offer(0, nil)
			b.kept()
			b.want(append(tt.left, "0 19@6"), list("running"), list("running"))
		})
	}
}

// The GPU was given whole to a claim before the partitions of an earlier layout came to be there, however that happened.
func TestLayout_InTheWayOfAClaim(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.lay(balanced)
	claim := deviceClaim("c", b.name(0))
	must(t, NewFollower(b.Ledger, &fakeAPI{claims: claimList(claim)}, func() *gpu.Node { return b.session.Node() }).List(t.Context()))
	b.offer(0, nil)
	wantRefused(t, b.Preparer, claim, "of the node's layout")
	b.kept()
	mustPrepare(t, b.Preparer, claim)
	b.want(nil, list("c"), nil)
}

// The partition of an earlier layout stays for the claim that was allocated just that, and is what the claim gets.
func TestLayout_KeptForAClaim(t *testing.T) {
	at := place(14, 4, 2)
	shared := policy.NoPlaces(nil)
	shared.KeepShared(gpu.SharedPlace{Place: at, Share: gpu.MPS}, &policy.Sharing{Shares: 4})
	another := cutInto(place(5, 0, 4))
	another.Kept = []gpu.Place{at}
	for name, tt := range map[string]struct {
		device string // the end of its name
		offer  *policy.PartitionOffer
		rest   []string
	}{
		"withdrawn":       {"", policy.NoPlaces([]gpu.Place{at}), nil},
		"share withdrawn": {"-" + string(gpu.MPS), shared, nil},
		"on demand":       {"", &policy.PartitionOffer{Mode: policy.OnDemand}, nil},
		"another layout":  {"", another, list("0 5@0")},
	} {
		t.Run(name, func(t *testing.T) {
			b := newSimBed(t, "hgx-h100")
			b.lay(balanced)
			claim := deviceClaim("c", b.name(0, 14, 4)+tt.device)
			api := &fakeAPI{claims: claimList(claim)}
			follower := NewFollower(b.Ledger, api, func() *gpu.Node { return b.session.Node() })
			must(t, follower.List(t.Context()))
			b.lay(tt.offer)
			mustPrepare(t, b.Preparer, claim)
			b.lay(tt.offer)
			b.want(append(list("0 14@4"), tt.rest...), list("c"), list("c"))
			b.unprepare("c")
			api.claims = nil
			must(t, follower.List(t.Context()))
			b.lay(tt.offer)
			b.want(tt.rest, nil, nil)
		})
	}
}
