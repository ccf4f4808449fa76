// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// The driver names of the tests.
const (
	nameA = "gpu.cleave.dev"
	nameB = "gpu.nvidia.com"
)

// process is one plugin process on a simulated node, which serves the node by a name.
type process struct {
	*Preparer
	own  string
	disk *faultyDisk
}

// startProcess starts a plugin by a name. What plugins of other names have left it finds on disk.
func startProcess(t testing.TB, root, own string, node *sim.Node) *process {
	t.Helper()
	p := &process{own: own, disk: newDisk()}
	o, err := stateIn(root, p.disk)
	must(t, err)
	specs := map[string]*specDir{}
	for _, name := range []string{nameA, nameB} {
		specs[name], err = specsIn(filepath.Join(root, name))
		must(t, err)
	}
	o.Identity = Identity{Driver: own, Pool: testPool}
	o.Specs = func(driver string) SpecRemover { return specs[driver] }
	p.Preparer = New(o)
	must(t, p.Load(t.Context(), nil))
	session, err := simulated.OpenNode(t.Context(), node)
	must(t, err)
	p.SetHardware(offeredHardware{session, nil}, specs[own])
	for _, name := range []string{nameA, nameB} {
		if set := p.LacksCDI(name); set != nil {
			set(specs[name])
		}
	}
	p.Recover(t.Context())
	return p
}

// of gives a claim's devices to another driver name.
func of(driver string, claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	claim = claim.DeepCopy()
	for i := range claim.Status.Allocation.Devices.Results {
		claim.Status.Allocation.Devices.Results[i].Driver = driver
	}
	return claim
}

// gpuOfNode is the device of the i-th GPU, or of its partition.
func gpuOfNode(node *sim.Node, t testing.TB, i int, mig ...int) string {
	t.Helper()
	st, err := node.Status()
	must(t, err)
	pci, err := gpu.ParsePCIAddress(st.GPUs[i].PCI)
	must(t, err)
	name := pci.DeviceName()
	if len(mig) == 2 {
		name += fmt.Sprintf("-mig-%d-%d", mig[0], mig[1])
	}
	return name
}

func TestPrepare_AllocatedUnderAnotherName(t *testing.T) {
	node := newSimNode(t, "hgx-h100")
	root := t.TempDir()
	g := func(i int, mig ...int) string { return gpuOfNode(node, t, i, mig...) }
	before := startProcess(t, root, nameA, node)
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
			wantRefused(t, now.Preparer, of(nameB, deviceClaim("new", test.device)), test.says)
			if !slices.Contains(now.Partitions.Occupied(), test.device) {
				t.Errorf("device %s is not among those that are occupied", test.device)
			}
		})
	}
	alongside := g(1, 19, 0)
	if slices.Contains(now.Partitions.Occupied(), alongside) {
		t.Errorf("device %s is occupied", alongside)
	}
	mustPrepare(t, now.Preparer, of(nameB, deviceClaim("alongside", alongside)))

	// A kubelet that restarted asks again, by the name of the claim.
	mustPrepare(t, now.Named(nameA), deviceClaim("part", g(1, 19, 6)))
	// The pods of the other name end, and what they had can be allocated.
	mustUnprepare(t, now.Named(nameA), deviceClaim("whole"))
	mustUnprepare(t, now.Named(nameA), deviceClaim("part"))
	mustPrepare(t, now.Preparer, of(nameB, deviceClaim("next", g(0), g(1, 19, 6))))
	if got := instancesOf(t, node); !slices.Equal(got, []string{"1 19@0", "1 19@6"}) {
		t.Errorf("partitions are %v", got)
	}
}

// One GPU is allocated to a claim of each of two names, and neither is prepared: one of them is, and the other one after it.
func TestPrepare_AllocatedUnderTwoNames(t *testing.T) {
	for _, publishedFirst := range []bool{false, true} {
		node := newSimNode(t, "hgx-h100")
		root := t.TempDir()
		startProcess(t, root, nameA, node).die()
		now := startProcess(t, root, nameB, node)
		other, device := now.Named(nameA), gpuOfNode(node, t, 0)
		old, next := deviceClaim("old", device), of(nameB, deviceClaim("next", device))
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
	device := gpuOfNode(node, t, 0, 19, 6)
	old, anew := deviceClaim("x", device), of(nameB, deviceClaim("x", gpuOfNode(node, t, 1, 19, 6)))
	mustPrepare(t, now.Named(nameA), old)
	wantRefused(t, now, anew, "still has devices", "of driver gpu.cleave.dev")
	mustUnprepare(t, now, anew) // it has nothing under this name
	if got := instancesOf(t, node); !slices.Equal(got, []string{"0 19@6"}) {
		t.Errorf("partitions are %v, want that of the other name", got)
	}
	mustUnprepare(t, now.Named(nameA), old)
	mustPrepare(t, now, anew)
	mustUnprepare(t, now.Named(nameA), old) // late, and once more
	if got := instancesOf(t, node); !slices.Equal(got, []string{"1 19@6"}) {
		t.Errorf("partitions are %v, want that of the claim", got)
	}
}

// The record of a claim of another name is corrupt: to unprepare it by this one leaves it alone.
func TestUnprepare_CorruptUnderAnotherName(t *testing.T) {
	node := newSimNode(t, "hgx-h100")
	root := t.TempDir()
	claim := deviceClaim("x", gpuOfNode(node, t, 0, 19, 6))
	now := startProcess(t, root, nameB, node)
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
	if got := instancesOf(t, node); len(got) > 0 {
		t.Errorf("partitions %v are left", got)
	}
}

// Of a claim that is not prepared yet, or has lost its record, only the API server knows.
func TestPrepare_AllocatedUnderAnotherNameAndNotPrepared(t *testing.T) {
	node := newSimNode(t, "hgx-h100")
	root := t.TempDir()
	g := func(i int, mig ...int) string { return gpuOfNode(node, t, i, mig...) }
	startProcess(t, root, nameA, node).die()
	now := startProcess(t, root, nameB, node)
	other := now.Named(nameA)
	waiting := []*resourceapi.ResourceClaim{deviceClaim("whole", g(0)), deviceClaim("part", g(1, 19, 6)), deviceClaim("unknown", g(2)+"-mig-99-0")}
	api := &fakeAPI{claims: waiting}
	now.Ledger.Names.Add(nameA)
	allocated := NewFollower(now.Ledger, api, func() *gpu.Node { return now.backend.Load().hardware.Node().Node })
	if err := allocated.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, device := range []string{g(0), g(0, 19, 0), g(1), g(1, 19, 6), g(2), g(2, 19, 0)} {
		wantRefused(t, now.Preparer, of(nameB, deviceClaim("new", device)), "of driver gpu.cleave.dev")
		if !slices.Contains(now.Partitions.Occupied(), device) {
			t.Errorf("device %s is not among those that are occupied", device)
		}
	}
	mustPrepare(t, now.Preparer, of(nameB, deviceClaim("alongside", g(1, 19, 0))))
	mustPrepare(t, other, waiting[0]) // what was allocated is prepared
	api.claims = nil
	if err := allocated.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustPrepare(t, now.Preparer, of(nameB, deviceClaim("new", g(1, 19, 6), g(2))))
	wantRefused(t, now.Preparer, of(nameB, deviceClaim("newer", g(0))), "claim ns/claim-whole (whole) of driver gpu.cleave.dev")
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
	processes := []*process{startProcess(t, root, nameA, node), startProcess(t, root, nameB, node)}
	allocated := map[types.UID]*resourceapi.ResourceClaim{} // prepared, by either name
	for i := range 80 {
		p := processes[random.IntN(len(processes))]
		switch uids := sortedClaims(allocated); {
		case random.IntN(12) == 0:
			at := slices.Index(processes, p)
			p.die()
			processes[at] = startProcess(t, root, []string{nameA, nameB}[random.IntN(2)], node)
		case random.IntN(3) == 0 && len(uids) > 0:
			claim := allocated[uids[random.IntN(len(uids))]]
			mustUnprepare(t, p.Named(claim.Status.Allocation.Devices.Results[0].Driver), claim)
			delete(allocated, claim.UID)
		default:
			device := gpuOfNode(node, t, random.IntN(2))
			if random.IntN(3) > 0 {
				device = gpuOfNode(node, t, random.IntN(2), 19, random.IntN(7))
			}
			claim := of(p.own, deviceClaim(types.UID(fmt.Sprintf("c%d", i)), device))
			if _, err := p.Prepare(t.Context(), claim); err == nil {
				allocated[claim.UID] = claim
			}
		}
		checkNothingTwice(t, root)
	}
	p := startProcess(t, root, nameA, node)
	for _, uid := range sortedClaims(allocated) {
		mustUnprepare(t, p.Named(allocated[uid].Status.Allocation.Devices.Results[0].Driver), allocated[uid])
	}
	if got := instancesOf(t, node); len(got) > 0 {
		t.Errorf("partitions %v are left", got)
	}
}

func sortedClaims(claims map[types.UID]*resourceapi.ResourceClaim) []types.UID {
	var uids []types.UID
	for uid := range claims {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	return uids
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
		g := gpuOfNode(node, t, 0, 19, 6)
		victim, left := startProcess(t, root, nameA, node), step
		victim.disk.fail = func(string, string) error {
			if left--; left < 0 {
				panic(errKilled) // it undoes nothing
			}
			return nil
		}
		claim := deviceClaim("x", g)
		killed := func() (killed bool) {
			defer func() { killed = recover() != nil }()
			mustPrepare(t, victim.Preparer, claim)
			mustUnprepare(t, victim.Preparer, claim)
			return false
		}()
		victim.die()

		now := startProcess(t, root, nameB, node)
		checkNothingTwice(t, root)
		found := now.Ledger.Records()
		_, prepareErr := now.Prepare(t.Context(), of(nameB, deviceClaim("y", g)))
		if len(found) > 0 {
			whole++
			wantError(t, prepareErr, "of driver gpu.cleave.dev")
			mustUnprepare(t, now.Named(nameA), claim)
			mustPrepare(t, now.Preparer, of(nameB, deviceClaim("y", g)))
		} else {
			gone++
			if prepareErr != nil {
				t.Errorf("killed at step %d: %v", step, prepareErr)
			}
		}
		mustUnprepare(t, now.Preparer, of(nameB, deviceClaim("y")))
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
