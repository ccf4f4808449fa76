// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"cmp"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// builder makes the model of a node.
type builder struct {
	node     *Node
	counters []packing.Counter
	blocks   []string
	gpus     []packing.GPU
	devices  []packing.Device
	byName   map[string]int // GPUs
}

func (b *builder) add(p *resourcepool.Pool) {
	number := len(b.node.pools)
	b.node.pools = append(b.node.pools, p.Pool)
	b.byName = map[string]int{}
	at := map[string]map[string]int{} // counters by set and name
	for _, set := range p.CounterSets() {
		at[set.Name] = map[string]int{}
		for _, name := range slices.Sorted(maps.Keys(set.Counters)) {
			at[set.Name][name] = len(b.counters)
			b.counters = append(b.counters, packing.Counter{
				Pool: number, Set: set.Name, Name: name, Total: thousandths(set.Counters[name].Value),
			})
		}
	}
	for _, d := range p.Devices() {
		b.device(number, d, at)
	}
}

func (b *builder) device(pool int, object *resourceapi.Device, counters map[string]map[string]int) {
	d := packing.Device{Name: object.Name, Pool: pool, Shape: shapeOf(b.node.Driver, object)}
	d.Shared = resourcepool.IsShared(object)
	d.Spread = d.Shared && resourcepool.Text(b.node.Driver, object, sharePlacement) == string(v1alpha1.PlacementSpread)
	for _, c := range object.ConsumesCounters {
		for _, name := range slices.Sorted(maps.Keys(c.Counters)) {
			if at, ok := counters[c.CounterSet][name]; ok {
				d.Needs = append(d.Needs, packing.Need{Counter: at, Amount: thousandths(c.Counters[name].Value)})
			}
		}
	}
	slices.SortFunc(d.Needs, func(a, b packing.Need) int { return cmp.Compare(a.Counter, b.Counter) })
	if d.Shared {
		for _, name := range slices.Sorted(maps.Keys(object.Capacity)) {
			capacity := object.Capacity[name]
			d.Capacities = append(d.Capacities, packing.Capacity{
				Name: string(name), Total: thousandths(capacity.Value), Default: thousandths(defaultOf(capacity)),
			})
		}
	}
	d.Size = b.size(d.Needs)
	d.GPU = b.gpu(object)
	b.node.Counted = b.node.Counted || d.Shared || len(d.Needs) > 0 || resourcepool.Text(b.node.Driver, object, "parentUUID") != ""
	b.node.index[deviceKey{b.node.pools[pool], d.Name}] = len(b.devices)
	b.node.objects = append(b.node.objects, object)
	b.devices = append(b.devices, d)
}

// gpu is the GPU of a device: that of its counter set, else of its PCI address, which partitions of Cleave have in their
// name, else of the UUID that partitions of others name, else its own.
func (b *builder) gpu(object *resourceapi.Device) int {
	name := "device " + object.Name
	pci, err := gpu.ParseDeviceName(object.Name)
	if len(object.ConsumesCounters) > 0 {
		name = object.ConsumesCounters[0].CounterSet
	} else if address := resourcepool.Text(b.node.Driver, object, pciBusID); address != "" {
		name = "PCI " + address
	} else if err == nil {
		name = "PCI " + pci.String()
	} else if uuid := resourcepool.Text(b.node.Driver, object, "parentUUID", "uuid"); uuid != "" {
		name = "UUID " + uuid
	}
	at, ok := b.byName[name]
	if !ok {
		at = len(b.gpus)
		b.byName[name] = at
		b.gpus = append(b.gpus, packing.GPU{Name: name})
		if len(object.ConsumesCounters) == 0 {
			b.gpus[at].Name = object.Name
			if err == nil {
				b.gpus[at].Name = pci.DeviceName()
			}
		}
	}
	if group := resourcepool.Text(b.node.Driver, object, "nvlinkGroup"); group != "" {
		b.join(at, "NVLink group "+group)
	}
	if numa := object.Attributes[numaNode]; numa.IntValue != nil {
		b.join(at, "NUMA node "+strconv.FormatInt(*numa.IntValue, 10))
	}
	return at
}

// Standard attributes that identify a GPU.
const (
	numaNode = deviceattribute.StandardDeviceAttributeNUMANode
	pciBusID = string(deviceattribute.StandardDeviceAttributePCIBusID)
)

// sharePlacement is the attribute of shared devices that says how claims are distributed among them.
const sharePlacement = "sharePlacement"

// join adds a GPU to a block.
func (b *builder) join(at int, block string) {
	index := slices.Index(b.blocks, block)
	if index < 0 {
		index = len(b.blocks)
		b.blocks = append(b.blocks, block)
	}
	if !slices.Contains(b.gpus[at].Blocks, index) {
		b.gpus[at].Blocks = append(b.gpus[at].Blocks, index)
		slices.Sort(b.gpus[at].Blocks)
	}
}

// sliceCounter matches counters of which each place of a partition has one: Cleave's slice-0, NVIDIA's memory-slice-0.
var sliceCounter = regexp.MustCompile(`slice-[0-9]+$`)

// units is the size of a device that consumes all of counters that have amounts, not places.
const units = 8

// size is how many places a device takes. Where counters have amounts, it is the largest part of one that it takes, in
// eighths; where they have neither, it is 1.
func (b *builder) size(needs []packing.Need) int {
	places, part := 0, 0.0
	for _, n := range needs {
		c := &b.counters[n.Counter]
		if sliceCounter.MatchString(c.Name) && n.Amount > 0 {
			places++
		} else if c.Total > 1000 {
			part = max(part, float64(n.Amount)/float64(c.Total))
		}
	}
	if places > 0 {
		return places
	}
	return max(1, int(math.Ceil(part*units)))
}

// shapeOf is the profile of a partition, else its type, else the name of its driver. A shared partition has both.
func shapeOf(driver string, object *resourceapi.Device) string {
	profile, kind := resourcepool.Text(driver, object, "profile"), resourcepool.Text(driver, object, "type")
	if profile != "" && resourcepool.IsShared(object) {
		return strings.TrimSpace(profile + " " + kind)
	}
	return cmp.Or(profile, kind, driver)
}

// thousandths of a quantity; amounts beyond the range are its end.
func thousandths(q resource.Quantity) int64 {
	const most = math.MaxInt64 / 4000 // sums must not overflow
	switch {
	case q.CmpInt64(most) > 0:
		return most * 1000
	case q.CmpInt64(-most) < 0:
		return -most * 1000
	}
	return q.MilliValue()
}
