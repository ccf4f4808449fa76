// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/killtest"
)

var (
	kills    = flag.Int("kills", 1000, "how often TestPreparer_Killed kills the plugin")
	killSeed = flag.Uint64("kill-seed", 1, "seed of its first scenario")
)

// No instance, interval or MPS registration without a claim, no claim without its own, whenever the plugin is killed.
func TestPreparer_Killed(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a thousand processes")
	}
	s := killtest.Scenario{Worker: "plugin", Lives: 25, Steps: 60, Kinds: 28, Begin: beginKills}
	s.Run(t, *kills, *killSeed)
}

// beginKills sets up a node, on which now and then, while no plugin runs, the driver is reloaded or all records become corrupt.
func beginKills(dir string, random *rand.Rand) (after func(killed bool) error, err error) {
	node, err := sim.Create(filepath.Join(dir, "node"), "hgx-h100", sim.WithoutDeviceNodes())
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "sharing"), 0o700), node.Init()); err != nil {
		return nil, err
	}
	if random.IntN(2) == 0 { // an unmanaged partition, created before the start
		d := node.Device(unmanagedGPU)
		_, modeErr := d.MIG().SetMIGMode(true)
		if _, err := d.MIG().CreateGPUInstance(19); errors.Join(modeErr, err) != nil {
			return nil, errors.Join(modeErr, err)
		}
	}
	var truth clusterTruth
	err = truth.disown(node)
	return func(killed bool) error {
		var now clusterTruth
		if err := killtest.ReadTruth(dir, &now); err != nil {
			return err
		}
		if err := now.checkUnmanaged(node); err != nil || !killed {
			return err
		}
		if random.IntN(4) == 0 {
			if err := spoilAll(dir); err != nil {
				return err
			}
		}
		if random.IntN(4) > 0 {
			return nil
		}
		return reload(dir, node, random)
	}, errors.Join(err, killtest.WriteTruth(dir, truth))
}

// spoilAll makes all records corrupt, and leaves their copies.
func spoilAll(dir string) error {
	paths, err := filepath.Glob(filepath.Join(dir, "claims", "*.json"))
	for _, path := range paths {
		err = errors.Join(err, os.Truncate(path, 1))
	}
	return err
}

// check compares boards, records, specs and what the cluster knows. It is strict once the kubelet has repeated what got
// no answer: before, such a claim may be whole or gone.
func (w *worker) check(when string, strict bool) error {
	var wrong []string
	complain := func(format string, args ...any) {
		wrong = append(wrong, fmt.Sprintf(format, args...))
	}
	found, corrupt, err := records.List(store.Disk{}, filepath.Join(w.dir, "claims"))
	if err := errors.Join(append(corrupt, err)...); err != nil {
		return err
	}
	have, open := map[types.UID]*records.Record{}, map[types.UID]bool{}
	for _, c := range w.truth.Claims {
		open[c.UID] = !strict && (!c.Prepared || c.Ending || c.Deleted)
	}
	for _, r := range found {
		have[r.Claim.UID] = r
		if r.State != records.Prepared {
			complain("the record of claim %s is %s", r.Claim, r.State)
		}
		if spec, want := w.specs.HasClaim(r.Claim.UID), len(r.WithEdits()) > 0; spec != want && !open[r.Claim.UID] {
			complain("claim %s has a spec: %t, want %t", r.Claim, spec, want)
		}
		for _, other := range found {
			for i := range r.Devices {
				if other.Claim.UID != r.Claim.UID && !r.Devices[i].AdminAccess && takes(other, extentOf(&r.Devices[i])) {
					complain("claims %s and %s both have %s", r.Claim, other.Claim, r.Devices[i].Device)
				}
			}
		}
	}
	for _, c := range w.truth.Claims {
		r := have[c.UID]
		if r == nil && !open[c.UID] {
			complain("claim %s (%v) has no record", c.UID, c.Devices)
		}
		if r != nil && !slices.EqualFunc(r.Devices, c.Devices, func(d records.Device, name string) bool { return baseName(name) == d.Device }) {
			complain("claim %s has other devices than it was allocated: %v", c.UID, c.Devices)
		}
		delete(have, c.UID)
	}
	for uid := range have {
		complain("there is a record of claim %s, which no one knows", uid)
	}
	w.checkSpecs(found, complain)
	w.checkSharing(found, open, complain)
	if err := w.checkBoards(found, open, complain); err != nil {
		return err
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		return fmt.Errorf("%s:\n\t%s", when, strings.Join(wrong, "\n\t"))
	}
	return nil
}

func (w *worker) checkSpecs(found []*records.Record, complain func(string, ...any)) {
	entries, err := os.ReadDir(w.specs.dir)
	if err != nil {
		complain("%v", err)
	}
	for _, e := range entries {
		if !slices.ContainsFunc(found, func(r *records.Record) bool { return string(r.Claim.UID) == e.Name() }) {
			complain("there is a spec of claim %s, which has no record", e.Name())
		}
	}
}

// checkSharing compares intervals and what MPS servers serve with the records. Whatever was cut short, nothing is there
// for no claim after any start; claims that are open, for which the kubelet will call again, may lack what they have on
// record.
func (w *worker) checkSharing(found []*records.Record, open map[types.UID]bool, complain func(string, ...any)) {
	known := map[string]bool{}
	for _, r := range found {
		for _, d := range r.Shares(gpu.MPS) {
			name := fmt.Sprintf("mps %s %s", d.Server(), r.Claim.UID)
			known[name] = true
			if !slices.Contains(w.sharing.files(), name) && !open[r.Claim.UID] {
				complain("the server of %s does not serve claim %s, which has it on record", d.Server(), r.Claim)
			}
		}
		for _, d := range withInterval(r) {
			known["interval "+d.GPU] = true
			if got := w.sharing.interval(d.GPU); got != d.Share.Interval && !open[r.Claim.UID] {
				complain("%s of claim %s asks for time slices %s, and they are %q", d.Device, r.Claim, d.Share.Interval, got)
			}
		}
	}
	for _, name := range w.sharing.files() {
		g, isInterval := strings.CutPrefix(name, "interval ")
		if !known[name] && (!isInterval || w.sharing.interval(g) != "") {
			complain("there is %q, which no claim has on record", name)
		}
	}
}

// checkBoards compares what exists on the boards with the records. Claims that are open, for which the kubelet will call
// again, may lack what they have on record.
func (w *worker) checkBoards(found []*records.Record, open map[types.UID]bool, complain func(string, ...any)) error {
	st, err := w.node.Status()
	if err != nil {
		return err
	}
	matched := map[*records.Device]bool{}
	for i, g := range st.GPUs {
		for _, gi := range g.Instances {
			owned := 0
			for _, r := range found {
				for _, d := range r.Partitions() {
					p := d.Partition
					if d.GPU != w.gpus.GPUs[i].PCI.DeviceName() || p.ProfileID != gi.ProfileID || p.Placement.Start != gi.Start {
						continue
					}
					owned++
					matched[d] = true
					if open[r.Claim.UID] {
						continue
					}
					if len(gi.Compute) != 1 || p.GI != gi.ID || p.CI == nil || *p.CI != gi.Compute[0].ID || p.UUID != gi.Compute[0].UUID {
						complain("%s of claim %s is not what its record says: GPU instance %d with %d compute instances", d.Device, r.Claim, gi.ID, len(gi.Compute))
					}
				}
			}
			if w.isUnmanaged(i, gi) {
				continue // that it is there is checked elsewhere
			}
			if i == layoutGPU {
				w.checkLaidOut(gi, found, complain)
				continue
			}
			if owned == 0 {
				complain("GPU %d has %s at %d (%d compute instances), which no claim has", i, gi.Profile, gi.Start, len(gi.Compute))
			}
		}
	}
	if !w.anyUnmanaged(layoutGPU) {
		w.checkLayout(st.GPUs[layoutGPU], found, complain)
	}
	if err := w.truth.checkUnmanaged(w.node); err != nil {
		complain("%v", err)
	}
	for _, r := range found {
		for i := range r.Devices {
			d := &r.Devices[i]
			if d.Partition == nil && !d.AdminAccess && st.GPUs[w.gpus.Find(d.GPU).Index].MIG {
				complain("claim %s has the whole of %s, which is in MIG mode", r.Claim, d.GPU)
			}
		}
		for _, d := range r.Partitions() {
			if !matched[d] && !open[r.Claim.UID] {
				complain("%s of claim %s does not exist", d.Device, r.Claim)
			}
		}
	}
	return nil
}

// layoutPlaces are the places of the active layout.
func (w *worker) layoutPlaces() []gpu.Place {
	if offer := killLayouts[w.truth.Layout]; offer != nil {
		return offer.Places
	}
	return nil
}

// allocatedOnLayout are the places of the layout's GPU that claims have.
func (w *worker) allocatedOnLayout(found []*records.Record) []gpu.Place {
	var held []gpu.Place
	for _, r := range found {
		for _, d := range r.Partitions() {
			if d.GPU == w.gpus.GPUs[layoutGPU].PCI.DeviceName() {
				held = append(held, d.Partition.Place())
			}
		}
	}
	return held
}

// checkLaidOut checks that a GPU instance is of the layout or allocated.
func (w *worker) checkLaidOut(gi sim.InstanceStatus, found []*records.Record, complain func(string, ...any)) {
	at := func(p gpu.Place) bool { return p.ProfileID == gi.ProfileID && p.Placement.Start == gi.Start }
	if !slices.ContainsFunc(w.layoutPlaces(), at) && !slices.ContainsFunc(w.allocatedOnLayout(found), at) || len(gi.Compute) != 1 {
		complain("layout %d: there is %s at %d with %d compute instances", w.truth.Layout, gi.Profile, gi.Start, len(gi.Compute))
	}
}

// checkLayout checks that all of the layout is there that no allocated partition is in the way of.
func (w *worker) checkLayout(g sim.GPUStatus, found []*records.Record, complain func(string, ...any)) {
	for _, p := range w.layoutPlaces() {
		there := slices.ContainsFunc(g.Instances, func(gi sim.InstanceStatus) bool { return gi.ProfileID == p.ProfileID && gi.Start == p.Placement.Start })
		blocked := slices.ContainsFunc(w.allocatedOnLayout(found), func(h gpu.Place) bool { return h.Placement.Overlaps(p.Placement) })
		if !there && !blocked {
			complain("layout %d: there is no partition of profile %d at %d", w.truth.Layout, p.ProfileID, p.Placement.Start)
		}
	}
}
