// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/driversession"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/killtest"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// worker is one life of the plugin, with a kubelet and an API server that live on in a file. It starts, puts right
// what the life before it has left, checks that, goes on, and is killed at a step.
type worker struct {
	*Preparer
	dir    string
	random *rand.Rand
	node   *sim.Node
	gpus   *policy.Node
	// shared are the partitions that may be shared, by policy.
	shared  []policy.PartitionSharing
	specs   *specDir
	sharing *sharingDir
	truth   clusterTruth
	life    *killtest.Life
}

// clusterTruth is what the API server and the kubelet know.
type clusterTruth struct {
	Next   int             `json:"next"`
	Claims []*clusterClaim `json:"claims"`
	// Layout of layoutGPU, one of killLayouts.
	Layout int `json:"layout"`
	// Unmanaged are the GPU instances that the plugin did not create.
	Unmanaged []unmanaged `json:"unmanaged"`
}

// clusterClaim is a claim that is allocated to the node.
type clusterClaim struct {
	UID     types.UID `json:"uid"`
	Devices []string  `json:"devices"` // see deviceClaim
	// Prepared once Prepare said success; Ending once Unprepare was called; Deleted when the API server no longer has it.
	Prepared, Ending, Deleted bool
	// Lost its partitions: when it is prepared again, it gets others or is refused.
	Lost bool
}

// workGPUs are the GPUs that claims are allocated on; few, so that claims meet.
const workGPUs = 3

// layoutGPU is kept partitioned as one of killLayouts, which change.
const layoutGPU = 3

// killLayouts are no layout and two that share a place.
var killLayouts = []*policy.PartitionOffer{nil, balanced, cutInto(place(5, 0, 4), place(19, 5, 1), place(19, 6, 1))}

// unmanagedGPU has an unmanaged partition.
const unmanagedGPU = 2

// runWorker is the main function of a worker process. It returns what is wrong.
func runWorker(life *killtest.Life) error {
	w := &worker{dir: life.Args, random: rand.New(rand.NewPCG(life.Seed, 1)), life: life}
	ctx := context.Background()
	if err := w.open(ctx); err != nil {
		return err
	}
	w.Recover(ctx)
	w.Reconcile(ctx, w.cluster())
	if err := w.relayout(ctx); err != nil {
		return err
	}
	if err := w.check("after the start", false); err != nil {
		return err
	}
	if err := w.retry(ctx); err != nil {
		return err
	}
	if err := w.check("after the kubelet tried again", true); err != nil {
		return err
	}
	for range 12 {
		if err := w.act(ctx); err != nil {
			return err
		}
	}
	return w.check("at the end", true)
}

func (w *worker) open(ctx context.Context) error {
	var err error
	if w.node, err = sim.Open(filepath.Join(w.dir, "node")); err != nil {
		return err
	}
	session, err := nvml.OpenLibrary(ctx, hookedLibrary{simulated.Library(w.node), w.life.Step}, w.node.Sysfs())
	if err != nil {
		return err
	}
	w.gpus = policy.Apply(&v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{MIG: &v1alpha1.MIGPolicy{Share: []v1alpha1.PartitionShare{
		{Profile: "3g.40gb", MPS: &v1alpha1.MPSPolicy{}, TimeSlice: &v1alpha1.TimeSlicePolicy{}}, {Profile: "1g.10gb", MPS: &v1alpha1.MPSPolicy{}},
	}}}}}, session.Node(), policy.Capabilities{})
	w.shared = w.gpus.Offers[layoutGPU].Partitions.Shared
	disk := hookedDisk{Disk: store.Disk{}, step: w.life.Step}
	o, err := stateIn(w.dir, disk)
	if err != nil {
		return err
	}
	if w.specs, err = specsIn(w.dir, compatibleID.Driver); err != nil {
		return err
	}
	w.specs.step = w.life.Step
	w.sharing = &sharingDir{dir: filepath.Join(w.dir, "sharing"), owner: compatibleID.Driver, step: func(what string) {
		action, _, _ := strings.Cut(what, " gpu-") // one kind of step for all GPUs and claims
		w.life.Step(action)
	}}
	if err := killtest.ReadTruth(w.dir, &w.truth); err != nil {
		return err
	}
	sessions, err := driversession.Open(disk, filepath.Join(w.dir, "session.json"), bootNow, os.DirFS(filepath.Join(w.dir, "node/sys")), os.DirFS(filepath.Join(w.dir, "node/proc")))
	if err != nil {
		return err
	}
	if err := sessions.Begin(nil); err != nil {
		return err
	}
	o.Identity, o.Specs, o.Sharing, o.Sessions = compatibleID, w.specs.under, w.sharing, sessions
	w.Preparer = New(o)
	if err := w.Load(ctx, nil); err != nil {
		return err
	}
	w.SetHardware(offeredHardware{session, w.gpus.Offers}, w.specs)
	return nil
}

// save writes what API server and kubelet know.
func (w *worker) save() {
	if err := killtest.WriteTruth(w.dir, w.truth); err != nil {
		panic(err)
	}
}

// cluster is the API server.
func (w *worker) cluster() *fakeAPI {
	api := &fakeAPI{}
	for _, c := range w.truth.Claims {
		if !c.Deleted {
			api.claims = append(api.claims, c.claim())
		}
	}
	return api
}

// claim is a claim as the API server has it.
func (c *clusterClaim) claim() *resourceapi.ResourceClaim {
	return forDriver(compatibleID.Driver, deviceClaim(c.UID, c.Devices...))
}

// retry does what the kubelet does after a restart of the plugin: it calls again what got no answer.
func (w *worker) retry(ctx context.Context) error {
	for _, c := range slices.Clone(w.truth.Claims) {
		var err error
		switch {
		case c.Ending:
			err = w.end(ctx, c)
		case !c.Prepared && !c.Deleted:
			err = w.begin(ctx, c)
			if err != nil && c.Lost {
				err = w.end(ctx, c) // something lies in its place, or another claim has it: the pod goes
			}
		}
		if err != nil {
			return fmt.Errorf("repeat for claim %s (%v): %w", c.UID, c.Devices, err)
		}
	}
	w.truth.Claims = slices.DeleteFunc(w.truth.Claims, func(c *clusterClaim) bool { return c.Deleted })
	w.save()
	return nil
}

func (w *worker) begin(ctx context.Context, c *clusterClaim) error {
	if _, err := w.Prepare(ctx, c.claim()); err != nil {
		return err
	}
	c.Prepared, c.Lost = true, false
	w.save()
	return nil
}

func (w *worker) end(ctx context.Context, c *clusterClaim) error {
	c.Ending = true
	w.save()
	b := w.backend.Load()
	if w.random.IntN(4) == 0 { // the driver is away
		w.SetWaiting(gpu.ErrDriverNotLoaded)
	}
	err := w.Unprepare(ctx, refOf(deviceClaim(c.UID)))
	w.SetHardware(b.hardware, w.specs)
	if err != nil {
		return err
	}
	w.Recover(ctx)
	w.truth.Claims = slices.DeleteFunc(w.truth.Claims, func(o *clusterClaim) bool { return o == c })
	w.save()
	return w.relayout(ctx)
}

// relayout lets the policy's layout hold, alongside what is allocated.
func (w *worker) relayout(ctx context.Context) error {
	g := &w.gpus.GPUs[layoutGPU]
	offer := &w.gpus.Offers[layoutGPU]
	offer.Whole, offer.TimeSlice, offer.MPS, offer.Partitions = false, nil, nil, policy.NoPlaces(nil)
	if layout := killLayouts[w.truth.Layout]; layout != nil {
		offer.Partitions = cutInto(layout.Places...)
		offer.Partitions.Shared = slices.Clone(w.shared)
	}
	for _, r := range w.Ledger.Records() {
		for _, d := range r.Partitions() {
			if d.GPU == g.PCI.DeviceName() && d.IsShared() {
				at := gpu.SharedPlace{Place: d.Partition.Place(), Share: d.Share.Kind}
				offer.Partitions.KeepShared(at, &policy.Sharing{Shares: 4})
			} else if d.GPU == g.PCI.DeviceName() {
				offer.Partitions.Kept = append(offer.Partitions.Kept, d.Partition.Place())
			}
		}
	}
	for _, p := range w.Partitions.KeepLayouts(ctx, w.backend.Load().hardware.Node()) {
		if w.anyUnmanaged(layoutGPU) { // which may be in its way
			continue
		}
		return fmt.Errorf("keep layout %d of %s: %w", w.truth.Layout, p.GPU, p.Err)
	}
	return nil
}

// act lets something happen in the cluster.
func (w *worker) act(ctx context.Context) error {
	live := slices.DeleteFunc(slices.Clone(w.truth.Claims), func(c *clusterClaim) bool { return c.Deleted })
	var pick *clusterClaim
	if len(live) > 0 {
		pick = live[w.random.IntN(len(live))]
	}
	switch dice := w.random.IntN(20); {
	case dice < 11 || pick == nil:
		devices := w.allocate()
		if len(devices) == 0 {
			return nil
		}
		w.truth.Next++
		c := &clusterClaim{UID: types.UID(fmt.Sprintf("c%d", w.truth.Next)), Devices: devices}
		w.truth.Claims = append(w.truth.Claims, c)
		w.save()
		return w.begin(ctx, c)
	case dice < 17:
		return w.end(ctx, pick)
	case dice < 18: // asked again
		return w.begin(ctx, pick)
	case dice < 19: // deleted by force while the plugin was away
		pick.Deleted = true
		w.save()
		w.Reconcile(ctx, w.cluster())
		w.truth.Claims = slices.DeleteFunc(w.truth.Claims, func(c *clusterClaim) bool { return c == pick })
		w.save()
		return nil
	case dice < 20 && w.random.IntN(2) == 0:
		return w.release(ctx)
	default:
		w.Recover(ctx)
		w.truth.Layout = w.random.IntN(len(killLayouts))
		w.save()
		return w.relayout(ctx)
	}
}
