// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// The driver names of the tests.
const (
	nameA = "gpu.cleave.dev"
	nameB = "gpu.nvidia.com"
)

// startProcess starts a plugin on a simulated node, which serves it by a name. What plugins of other names have left it finds on disk.
func startProcess(t testing.TB, root, own string, node *sim.Node) *simBed {
	t.Helper()
	b := openSimBed(t, root, node, as(Identity{Driver: own, Pool: testPool}))
	for _, name := range []string{nameA, nameB} {
		if set := b.LacksCDI(name); set != nil {
			set(b.specs.of(name))
		}
	}
	b.Recover(t.Context())
	return b
}

func TestPrepare_AllocatedUnderAnotherName(t *testing.T) {
	node := newSimNode(t, "hgx-h100")
	root := t.TempDir()
	before := startProcess(t, root, nameA, node)
	g := before.name
	mustPrepare(t, before.Preparer, deviceClaim("whole", g(0)))
	mustPrepare(t, before.Preparer, deviceClaim("part", g(1, 19, 6)))
	before.die()

	now := startProcess(t, root, nameB, node)
	for name, test := range map[string]struct{ device, says string }{
		"the same GPU":                         {g(0), "claim ns/claim-whole (whole) of driver gpu.cleave.dev"},
		"a partition of the GPU":               {g(0, 19, 0), "claim ns/claim-whole (whole) of driver gpu.cleave.dev"},
		"the GPU of a partition":               {g(1), "claim ns/claim-part (part) of driver gpu.cleave.dev"},
		"the same partition":                   {g(1, 19, 6), "claim ns/claim-part (part) of driver gpu.cleave.dev"},
		"a partition that is partly elsewhere": {g(1, 9, 4), "claim ns/claim-part (part) of driver gpu.cleave.dev"},
	} {
		t.Run(name, func(t *testing.T) {
			wantRefused(t, now.Preparer, forDriver(nameB, deviceClaim("new", test.device)), test.says)
			if !slices.Contains(now.Partitions.Occupied(), test.device) {
				t.Errorf("device %s is not among those that are occupied", test.device)
			}
		})
	}
	alongside := g(1, 19, 0)
	if slices.Contains(now.Partitions.Occupied(), alongside) {
		t.Errorf("device %s is occupied", alongside)
	}
	mustPrepare(t, now.Preparer, forDriver(nameB, deviceClaim("alongside", alongside)))

	// A kubelet that restarted asks again, by the name of the claim.
	mustPrepare(t, now.Named(nameA), deviceClaim("part", g(1, 19, 6)))
	// The pods of the other name end, and what they had can be allocated.
	mustUnprepare(t, now.Named(nameA), deviceClaim("whole"))
	mustUnprepare(t, now.Named(nameA), deviceClaim("part"))
	mustPrepare(t, now.Preparer, forDriver(nameB, deviceClaim("next", g(0), g(1, 19, 6))))
	equal(t, "partitions", list("1 19@0", "1 19@6"), now.instances())
}

// One GPU is allocated to a claim of each of two names, and neither is prepared: one of them is, and the other one after it.
func TestPrepare_AllocatedUnderTwoNames(t *testing.T) {
	for _, publishedFirst := range []bool{false, true} {
		node := newSimNode(t, "hgx-h100")
		root := t.TempDir()
		startProcess(t, root, nameA, node).die()
		now := startProcess(t, root, nameB, node)
		other, device := now.Named(nameA), now.name(0)
		old, next := deviceClaim("old", device), forDriver(nameB, deviceClaim("next", device))
		api := &fakeAPI{claims: claimList(old, next)}
		follower := NewFollower(now.Ledger, api, func() *gpu.Node { return now.backend.Load().hardware.Node().Node })
		must(t, follower.List(t.Context()))
		if publishedFirst { // before the other name is known
			mustPrepare(t, now.Preparer, next)
			now.Ledger.Names.Add(nameA)
			must(t, follower.List(t.Context()))
			wantRefused(t, other, old, "claim ns/claim-next (next) of driver gpu.nvidia.com")
			continue
		}
		now.Ledger.Names.Add(nameA)
		must(t, follower.List(t.Context()))
		wantRefused(t, now.Preparer, next, "claim ns/claim-old (old) of driver gpu.cleave.dev")
		mustPrepare(t, other, old)
		wantRefused(t, now.Preparer, next, "claim ns/claim-old (old) of driver gpu.cleave.dev")
		mustUnprepare(t, other, old)
		api.claims = claimList(next)
		must(t, follower.List(t.Context()))
		mustPrepare(t, now.Preparer, next)
	}
}

// A claim that was deallocated and allocated anew under another name is prepared once the first one has unprepared it, by which nobody
// loses what it has.
func TestPrepare_AllocatedAnewUnderAnotherName(t *testing.T) {
	node := newSimNode(t, "hgx-h100")
	now := startProcess(t, t.TempDir(), nameB, node)
	old, anew := deviceClaim("x", now.name(0, 19, 6)), forDriver(nameB, deviceClaim("x", now.name(1, 19, 6)))
	mustPrepare(t, now.Named(nameA), old)
	wantRefused(t, now, anew, "still has devices", "of driver gpu.cleave.dev")
	mustUnprepare(t, now, anew) // it has nothing under this name
	equal(t, "partitions of the other name", list("0 19@6"), now.instances())
	mustUnprepare(t, now.Named(nameA), old)
	mustPrepare(t, now, anew)
	mustUnprepare(t, now.Named(nameA), old) // late, and once more
	equal(t, "partitions of the claim", list("1 19@6"), now.instances())
}

// The record of a claim of another name is corrupt: to unprepare it by this one leaves it alone.
func TestUnprepare_CorruptUnderAnotherName(t *testing.T) {
	node := newSimNode(t, "hgx-h100")
	root := t.TempDir()
	now := startProcess(t, root, nameB, node)
	claim := deviceClaim("x", now.name(0, 19, 6))
	now.api = &fakeAPI{claims: claimList(claim)}
	mustPrepare(t, now.Named(nameA), claim)
	now.die()
	spoil(t, root, "x")
	now = startProcess(t, root, nameB, node)
	now.api = &fakeAPI{claims: claimList(claim)}
	now.Ledger.Names.Add(nameA) // by its files
	mustUnprepare(t, now, claim)
	now.Reconcile(t.Context(), now.api)
	if r := now.Named(nameA).Record("x"); r == nil || len(r.Partitions()) != 1 {
		t.Fatalf("the record is %+v, want it created again", r)
	}
	mustUnprepare(t, now.Named(nameA), claim)
	equal(t, "partitions", list(), now.instances(), cmpopts.EquateEmpty())
}

// Of a claim that is not prepared yet, or has lost its record, only the API server knows.
func TestPrepare_AllocatedUnderAnotherNameAndNotPrepared(t *testing.T) {
	node := newSimNode(t, "hgx-h100")
	root := t.TempDir()
	startProcess(t, root, nameA, node).die()
	now := startProcess(t, root, nameB, node)
	g, other := now.name, now.Named(nameA)
	waiting := []*resourceapi.ResourceClaim{deviceClaim("whole", g(0)), deviceClaim("part", g(1, 19, 6)), deviceClaim("unknown", g(2)+"-mig-99-0")}
	api := &fakeAPI{claims: waiting}
	now.Ledger.Names.Add(nameA)
	allocated := NewFollower(now.Ledger, api, func() *gpu.Node { return now.backend.Load().hardware.Node().Node })
	must(t, allocated.List(t.Context()))
	for _, device := range []string{g(0), g(0, 19, 0), g(1), g(1, 19, 6), g(2), g(2, 19, 0)} {
		wantRefused(t, now.Preparer, forDriver(nameB, deviceClaim("new", device)), "of driver gpu.cleave.dev")
		if !slices.Contains(now.Partitions.Occupied(), device) {
			t.Errorf("device %s is not among those that are occupied", device)
		}
	}
	mustPrepare(t, now.Preparer, forDriver(nameB, deviceClaim("alongside", g(1, 19, 0))))
	mustPrepare(t, other, waiting[0]) // what was allocated is prepared
	api.claims = nil
	must(t, allocated.List(t.Context()))
	mustPrepare(t, now.Preparer, forDriver(nameB, deviceClaim("new", g(1, 19, 6), g(2))))
	wantRefused(t, now.Preparer, forDriver(nameB, deviceClaim("newer", g(0))), "claim ns/claim-whole (whole) of driver gpu.cleave.dev")
}

// Plugins of two names run at once and are killed and started again by either name; claims of both come and go.
func TestOtherNames_NothingIsAllocatedTwice(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { churnNames(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func churnNames(t *testing.T, random *rand.Rand) {
	node := newSimNode(t, "hgx-h100")
	root := t.TempDir()
	processes := []*simBed{startProcess(t, root, nameA, node), startProcess(t, root, nameB, node)}
	allocated := map[types.UID]*resourceapi.ResourceClaim{} // prepared, by either name
	for i := range 80 {
		p := processes[random.IntN(len(processes))]
		switch uids := slices.Sorted(maps.Keys(allocated)); {
		case random.IntN(12) == 0:
			at := slices.Index(processes, p)
			p.die()
			processes[at] = startProcess(t, root, []string{nameA, nameB}[random.IntN(2)], node)
		case random.IntN(3) == 0 && len(uids) > 0:
			claim := allocated[uids[random.IntN(len(uids))]]
			mustUnprepare(t, p.Named(claim.Status.Allocation.Devices.Results[0].Driver), claim)
			delete(allocated, claim.UID)
		default:
			device := p.name(random.IntN(2))
			if random.IntN(3) > 0 {
				device = p.name(random.IntN(2), 19, random.IntN(7))
			}
			claim := forDriver(p.Ledger.id.Driver, deviceClaim(types.UID(fmt.Sprintf("c%d", i)), device))
			if _, err := p.Prepare(t.Context(), claim); err == nil {
				allocated[claim.UID] = claim
			}
		}
		checkNothingTwice(t, root)
	}
	p := startProcess(t, root, nameA, node)
	for _, claim := range allocated {
		mustUnprepare(t, p.Named(claim.Status.Allocation.Devices.Results[0].Driver), claim)
	}
	equal(t, "partitions", list(), p.instances(), cmpopts.EquateEmpty())
}

// checkNothingTwice fails if records of any names, read from disk, exclude each other.
func checkNothingTwice(t *testing.T, root string) {
	t.Helper()
	all, corrupt, err := records.List(store.Disk{}, filepath.Join(root, "claims"))
	if err != nil || len(corrupt) > 0 {
		t.Fatal(err, corrupt)
	}
	for i, r := range all {
		for _, s := range all[:i] {
			for j := range r.Devices {
				for k := range s.Devices {
					if !r.Devices[j].AdminAccess && extentOf(&r.Devices[j]).collides(extentOf(&s.Devices[k])) {
						t.Fatalf("claims %s and %s both have %s and %s", r.Claim, s.Claim, r.Devices[j].Device, s.Devices[k].Device)
					}
				}
			}
		}
	}
}

// A plugin of one name is killed at each step of a claim's life, and one of the other name starts: the claim is whole or gone,
// and what it has nobody else gets.
func TestOtherNames_KilledInBetween(t *testing.T) {
	whole, gone := 0, 0
	for step := 0; ; step++ {
		node := newSimNode(t, "hgx-h100")
		root := t.TempDir()
		victim, left := startProcess(t, root, nameA, node), step
		g := victim.name(0, 19, 6)
		victim.disk.fail = func(string, string) error {
			if left--; left < 0 {
				panic(errKilled) // it undoes nothing
			}
			return nil
		}
		claim := deviceClaim("x", g)
		killed := dies(func() {
			mustPrepare(t, victim.Preparer, claim)
			mustUnprepare(t, victim.Preparer, claim)
		})
		victim.die()

		now := startProcess(t, root, nameB, node)
		checkNothingTwice(t, root)
		found := now.Ledger.Records()
		_, prepareErr := now.Prepare(t.Context(), forDriver(nameB, deviceClaim("y", g)))
		if len(found) > 0 {
			whole++
			wantError(t, prepareErr, "of driver gpu.cleave.dev")
			mustUnprepare(t, now.Named(nameA), claim)
			mustPrepare(t, now.Preparer, forDriver(nameB, deviceClaim("y", g)))
		} else {
			gone++
			if prepareErr != nil {
				t.Errorf("killed at step %d: %v", step, prepareErr)
			}
		}
		mustUnprepare(t, now.Preparer, forDriver(nameB, deviceClaim("y")))
		if got := instancesOf(t, node); len(got) > 0 {
			t.Errorf("killed at step %d: partitions %v are left", step, got)
		}
		if !killed {
			break
		}
	}
	if whole == 0 || gone == 0 {
		t.Errorf("the claim was %d times whole and %d times gone: want both", whole, gone)
	}
}

// What was made ahead of claims under the other name is Cleave's, and is destroyed when the policy no longer has it.
func TestKeepLayouts_OfAnotherName(t *testing.T) {
	node := newSimNode(t, "hgx-h100")
	root := t.TempDir()
	before := startProcess(t, root, nameA, node)
	before.lay(cutInto(place(19, 0, 1), place(19, 1, 1)))
	before.die()

	now := startProcess(t, root, nameB, node)
	now.lay(cutInto(place(19, 1, 1), place(19, 2, 1)))
	equal(t, "partitions", list("0 19@1", "0 19@2"), now.instances())
}
