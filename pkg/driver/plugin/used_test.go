// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/driver/processes"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// usedBed is a sampler of a simulated node: a whole GPU, a partition, two time slices.
type usedBed struct {
	*sampler
	t     *testing.T
	node  *sim.Node
	gpus  []gpu.GPU
	all   []*records.Record
	ahead time.Duration
	pods  map[int]types.UID
}

func newUsedBed(t *testing.T) *usedBed {
	b := &usedBed{t: t, pods: map[int]types.UID{}}
	var err error
	b.node, err = sim.New("hgx-h100", sim.WithClock(func() time.Time { return time.Now().Add(b.ahead) }))
	if err != nil {
		t.Fatal(err)
	}
	session, err := simulated.OpenNode(t.Context(), b.node)
	if err != nil {
		t.Fatal(err)
	}
	if err := session.SetMIG(t.Context(), session.Node().GPUs[1].PCI, true); err != nil {
		t.Fatal(err)
	}
	if err := session.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.gpus = session.Node().GPUs
	var part gpu.Partition
	for _, s := range b.gpus[1].PartitionShapes() {
		if s.Profile.ID == 19 && s.Placement.Start == 0 {
			part, err = session.CreatePartition(t.Context(), s)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	source := &usageSource{records: func() []*records.Record { return b.all },
		pods: func(uid types.UID) []string { return []string{"pod-" + string(uid)} }}
	to := newUsedCollector(func() *usageSource { return source })
	to.every = time.Hour
	b.sampler = &sampler{every: time.Hour, inventory: session.Node, read: nvml.NewMeter(session).Read, records: source.records, to: to,
		busy: map[gpu.PCIAddress]bool{}, owners: func(_ context.Context, pids []int) (map[int]processes.Owner, error) {
			owners := map[int]processes.Owner{}
			for _, pid := range pids {
				owners[pid] = processes.Owner{Pod: b.pods[pid]}
			}
			return owners, nil
		}}
	b.claim("whole", 0, "", nil, nil)
	b.claim("mig", 1, "-mig-19-0", &part, nil)
	b.claim("slice-1", 2, "-timeslice", nil, &records.Share{ID: "1", Kind: gpu.TimeSlice, Shares: 1, Memory: 20 << 30})
	b.claim("slice-2", 2, "-timeslice", nil, &records.Share{ID: "2", Kind: gpu.TimeSlice, Shares: 1, Memory: 20 << 30})
	return b
}

func (b *usedBed) claim(name string, at int, suffix string, part *gpu.Partition, share *records.Share) {
	g := &b.gpus[at]
	b.all = append(b.all, &records.Record{
		Claim: records.Claim{Namespace: "team", Name: name, UID: types.UID(name)}, Pods: []types.UID{types.UID(name)}, OwnerPod: types.UID(name),
		Devices: []records.Device{{Pool: "node-1", GPU: g.PCI.DeviceName(), Device: g.PCI.DeviceName() + suffix, UUID: g.UUID, Partition: part, Share: share}},
	})
}

func (b *usedBed) load(at, pid int, claim types.UID, gi, sm int) {
	b.t.Helper()
	b.pods[pid] = claim
	c := sim.Client{PID: pid, Memory: uint64(pid) << 20, GPUInstance: gi, ComputeInstance: min(gi, 0), Load: &sim.Load{SM: sm, DRAM: sm / 2}}
	if err := b.node.Clients().SetLoad(at, c); err != nil {
		b.t.Fatal(err)
	}
}

// twoPasses looks, lets time pass, and looks again.
func (b *usedBed) twoPasses() {
	b.pass(b.t.Context())
	b.looks.Wait()
	<-time.After(1100 * time.Millisecond) // counters of energy are compared after a second at least
	b.ahead += 10 * time.Second
	b.pass(b.t.Context())
	b.looks.Wait()
}

// figures are the collected values by "name claim source".
func (b *usedBed) figures() map[string]float64 {
	b.t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(b.to)
	families, err := registry.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			labels := map[string]string{}
			for _, l := range m.Label {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["pod"] != "pod-"+labels["dra_claim_name"] || labels["namespace"] != "team" || labels["UUID"] == "" {
				b.t.Errorf("%s has labels %v", f.GetName(), labels)
			}
			value := m.GetGauge().GetValue()
			if f.GetType().String() == "COUNTER" {
				value = m.GetCounter().GetValue()
			}
			got[strings.TrimPrefix(f.GetName(), "cleave_claim_")+" "+labels["dra_claim_name"]+" "+labels["source"]] = value
		}
	}
	return got
}

func TestUsed_Tiers(t *testing.T) {
	b := newUsedBed(t)
	b.load(0, 100, "whole", -1, 40)
	b.load(1, 200, "mig", b.all[1].Devices[0].Partition.GI, 60)
	b.load(2, 300, "slice-1", -1, 30)
	b.load(2, 400, "slice-2", -1, 0)
	b.load(2, 500, "", -1, 5)
	b.twoPasses()
	got := b.figures()
	for name, want := range map[string]float64{
		"memory_used_bytes whole process": 100 << 20, "memory_used_bytes mig process": 200 << 20,
		"memory_used_bytes slice-1 process": 300 << 20, "memory_used_bytes slice-2 process": 400 << 20,
		"sm_active_ratio whole gpm": .4, "sm_active_ratio mig gpm": .6, "sm_active_ratio slice-1 process": .3, "sm_active_ratio slice-2 process": 0,
		"dram_active_ratio whole gpm": .2, "dram_active_ratio mig gpm": .3, "dram_active_ratio slice-1 process": .15,
	} {
		if value, ok := got[name]; !ok || math.Abs(value-want) > want/10 {
			t.Errorf("%s is %v, %t, want %v", name, value, ok, want)
		}
	}
	if got["last_active_timestamp_seconds slice-2 process"] >= got["last_active_timestamp_seconds slice-1 process"] {
		t.Errorf("the idle claim was active later: %v", got)
	}
	for _, name := range []string{"whole", "mig", "slice-1", "slice-2"} {
		if got["energy_joules_total "+name+" device"] <= 0 {
			t.Errorf("%s has no energy", name)
		}
	}
	if problems, err := testutil.CollectAndLint(b.to); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	b.to.now = func() time.Time { return time.Now().Add(3 * time.Hour) }
	for name := range b.figures() {
		if !strings.Contains(name, "_max_") && !strings.Contains(name, "_seen_") && !strings.HasPrefix(name, "first_look") {
			t.Errorf("figures of GPUs that are silent: %s", name)
		}
	}
}

// The most that was seen stays when a claim does less, or its GPU is silent, and says for how long it was seen.
func TestUsed_Seen(t *testing.T) {
	b := newUsedBed(t)
	b.load(0, 100, "whole", -1, 40)
	began := time.Now()
	b.twoPasses()
	between := time.Now().Add(-time.Second) // of the first two looks
	b.load(0, 100, "whole", -1, 10)
	b.twoPasses()
	b.to.now = func() time.Time { return time.Now().Add(3 * time.Hour) }
	got := b.figures()
	for name, want := range map[string]float64{
		"memory_used_max_bytes": 100 << 20, "sm_active_max_ratio": .4, "memory_seen_seconds_total": 4 * 3600, "sm_seen_seconds_total": 3 * 3600,
	} {
		if value, ok := got[name+" whole "]; !ok || math.Abs(value-want) > want/10 {
			t.Errorf("%s is %v, %t, want %v", name, value, ok, want)
		}
	}
	if first := got["first_look_timestamp_seconds whole "]; first < float64(began.UnixMilli())/1000 || first > float64(between.UnixMilli())/1000 {
		t.Errorf("the first look was at %f, want one from %v to %v", first, began, between)
	}
}

// A claim was deleted and created again under its name, while a container of its force-deleted pod is still there: the names of all
// pods of both are unknown, and so are labels that tell them apart. One such pair must not take all metrics away.
func TestUsed_SameName(t *testing.T) {
	b := newUsedBed(t)
	b.all[3].Claim.Name = b.all[2].Claim.Name
	b.to.source = func() *usageSource {
		return &usageSource{records: func() []*records.Record { return b.all }, pods: func(types.UID) []string { return nil }, inventory: b.inventory}
	}
	b.pass(t.Context())
	b.looks.Wait()
	registry := prometheus.NewRegistry()
	allocated := &usageCollector{}
	allocated.source.Store(b.to.source())
	registry.MustRegister(b.to, allocated)
	if families, err := registry.Gather(); err != nil || len(families) == 0 {
		t.Errorf("got %d families of metrics, %v", len(families), err)
	}
}

// Where nothing is allocated, nothing is asked.
func TestUsed_NothingAllocated(t *testing.T) {
	b := newUsedBed(t)
	b.all = nil
	b.node.Calls().Reset()
	b.pass(t.Context())
	b.looks.Wait()
	if n := b.node.Calls().Total(); n > 0 {
		t.Errorf("%d NVML calls", n)
	}
}

// A slow GPU has no figures, and others have.
func TestUsed_SlowGPU(t *testing.T) {
	b := newUsedBed(t)
	free := make(chan struct{})
	read, slow := b.read, b.gpus[0].PCI
	var count sync.Map
	b.read = func(ctx context.Context, pci gpu.PCIAddress, q nvml.UseQuery) (gpu.Reading, error) {
		n, _ := count.LoadOrStore(pci, new(int))
		*n.(*int)++
		if pci == slow {
			<-free
		}
		return read(ctx, pci, q)
	}
	for range 3 {
		b.pass(t.Context())
		for deadline := time.Now().Add(10 * time.Second); len(b.figures()) < 3 && time.Now().Before(deadline); {
			<-time.After(time.Millisecond)
		}
	}
	got := b.figures()
	if _, ok := got["memory_used_bytes whole process"]; ok || len(got) < 3 {
		t.Errorf("got %v, want all but the slow GPU's", got)
	}
	close(free)
	b.looks.Wait()
	if n, _ := count.Load(slow); *n.(*int) != 1 {
		t.Errorf("%d looks at a slow GPU at once", *n.(*int))
	}
}
