// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// Pool contains the API objects about a node's GPUs.
type Pool struct {
	Node, Driver string
	// Slices, Claims and Rules of other nodes and drivers are ignored.
	Slices []resourceapi.ResourceSlice
	Claims []resourceapi.ResourceClaim
	Rules  []resourceapi.DeviceTaintRule
}

// IncompleteError is returned for a pool with missing slices.
type IncompleteError struct {
	Pool       string
	Generation int64
	Have, Want int64
}

func (e *IncompleteError) Error() string {
	return fmt.Sprintf("pool %s is incomplete: it has %d of %d slices of generation %d, and the scheduler allocates nothing "+
		"from it meanwhile; "+
		"the plugin may be publishing, so try again, and if it persists, see the plugin's log on that node", e.Pool, e.Have, e.Want, e.Generation)
}

// NoSlicesError is returned for a node without ResourceSlices of the driver.
type NoSlicesError struct {
	Node, Driver string
}

func (e *NoSlicesError) Error() string {
	return fmt.Sprintf("node %s has no ResourceSlices of driver %s", e.Node, e.Driver)
}

// OfPool is the view of a node from its ResourceSlices and allocated claims. The error is an IncompleteError or a
// NoSlicesError.
func OfPool(p Pool) (*View, error) {
	found, err := p.pools()
	if err != nil {
		return nil, err
	}
	d := &decoder{
		pool: p, view: &View{Source: Cluster, Node: p.Node, Driver: p.Driver, GPUs: []GPU{}},
		full: resourcepool.Stock{}, pools: map[string]bool{}, byName: map[string]int{}, units: map[resourcepool.CounterID]int{},
	}
	invalid := map[string]bool{}
	for _, pool := range found {
		d.pools[pool.Pool] = true
		if pool.Invalid != "" {
			invalid[pool.Pool] = true
			d.view.Problems = append(d.view.Problems, pool.Invalid+": the scheduler allocates nothing from the pool")
		}
		d.counters(pool.Stock())
	}
	for _, pool := range found {
		for _, s := range pool.Slices {
			d.devices(s)
		}
	}
	d.left = maps.Clone(d.full)
	for i := range p.Claims {
		d.claim(&p.Claims[i])
	}
	d.overdrawn(invalid)
	d.finish()
	return d.view, nil
}

// pools are those of the node; an error where one is incomplete, or there is none.
func (p *Pool) pools() ([]*resourcepool.Pool, error) {
	var own []*resourceapi.ResourceSlice
	for i := range p.Slices {
		s := &p.Slices[i]
		if s.Spec.Driver == p.Driver && s.Spec.NodeName != nil && *s.Spec.NodeName == p.Node {
			own = append(own, s)
		}
	}
	if len(own) == 0 {
		return nil, &NoSlicesError{Node: p.Node, Driver: p.Driver}
	}
	found := resourcepool.Gather(own, nil)
	for _, pool := range found {
		if pool.IsIncomplete() {
			return nil, &IncompleteError{Pool: pool.Pool, Generation: pool.Generation, Have: pool.Have(), Want: pool.Want}
		}
	}
	return found, nil
}

// decoder builds a view from slices.
type decoder struct {
	pool       Pool
	view       *View
	full, left resourcepool.Stock
	// pools are those of the node, usually one.
	pools map[string]bool
	gpus  []*decoded
	// byName maps pool and device to the index in gpus.
	byName map[string]int
	// units is the minimum number of placement units by counter set.
	units map[resourcepool.CounterID]int
}

// decoded is a GPU under construction.
type decoded struct {
	key     string
	index   *int
	devices []published // as many as the GPU's shapes
	view    GPU
}

const counterOfUnit = "slice-"

func (d *decoder) counters(all resourcepool.Stock) {
	maps.Copy(d.full, all)
	for id := range all {
		unit, isUnit := strings.CutPrefix(id.Name, counterOfUnit)
		if n, err := strconv.Atoi(unit); isUnit && err == nil && n >= 0 && n < maxUnits {
			id.Name = ""
			d.units[id] = max(d.units[id], n+1)
		}
	}
}

func (d *decoder) devices(s *resourceapi.ResourceSlice) {
	for i := range s.Spec.Devices {
		dev := published{Device: &s.Spec.Devices[i], driver: d.pool.Driver, pool: s.Spec.Pool.Name}
		name := deviceKey(dev.pool, dev.Name)
		if _, twice := d.byName[name]; twice {
			continue // the pool is invalid
		}
		key := deviceKey(dev.pool, dev.parent())
		at := slices.IndexFunc(d.gpus, func(g *decoded) bool { return g.key == key })
		if at < 0 {
			at = len(d.gpus)
			d.gpus = append(d.gpus, &decoded{key: key, view: GPU{Shapes: []Shape{}}})
		}
		d.byName[name] = at
		d.add(d.gpus[at], dev)
	}
}

func deviceKey(pool, name string) string { return pool + "\x00" + name }

// add adds a device to its GPU.
func (d *decoder) add(g *decoded, dev published) {
	shape := Shape{Device: dev.Name, Type: dev.text("type"), Profile: dev.text("profile"), Placement: dev.placement(),
		needs: resourcepool.Needs(dev.pool, dev.Device)}
	if shape.Type == "" {
		shape.Type = typeGPU
	}
	if resourcepool.IsShared(dev.Device) {
		total := dev.total()
		shape.Total, shape.least, shape.usual = &total, dev.least(), dev.usual()
	}
	for _, t := range dev.Taints {
		shape.Taints = append(shape.Taints, taintOf(t.Key, t.Value, string(t.Effect)))
	}
	shape.Taints = append(shape.Taints, d.ruled(dev)...)
	if shape.isPartition() {
		end := shape.Placement.Start + shape.Placement.Size
		for _, c := range dev.ConsumesCounters {
			end = max(end, d.units[resourcepool.CounterID{Pool: dev.pool, Set: c.CounterSet}])
		}
		g.view.Slices = max(g.view.Slices, end)
	}
	g.devices = append(g.devices, dev)
	g.view.Shapes = append(g.view.Shapes, shape)
	d.facts(g, dev, &shape)
}

// ruled returns the taints of DeviceTaintRules on a device.
func (d *decoder) ruled(dev published) []Taint {
	var taints []Taint
	for i := range d.pool.Rules {
		r := &d.pool.Rules[i]
		if !resourcepool.Taints(r, resourcepool.ID{Driver: dev.driver, Pool: dev.pool}, dev.Name) {
			continue
		}
		t := taintOf(r.Spec.Taint.Key, r.Spec.Taint.Value, string(r.Spec.Taint.Effect))
		if !slices.Contains(byRules, t.Key) {
			t.Meaning = "set by DeviceTaintRule " + r.Name
		}
		taints = append(taints, t)
	}
	return taints
}

// facts sets the attributes of a GPU that no earlier device has set.
func (d *decoder) facts(g *decoded, dev published, s *Shape) {
	v := &g.view
	text := func(to *string, names ...string) {
		for _, name := range names {
			if *to == "" {
				*to = dev.text(name)
			}
		}
	}
	if s.isPartition() {
		text(&v.UUID, "parentUUID")
	} else {
		text(&v.UUID, "uuid")
		if v.MemoryBytes == 0 {
			v.MemoryBytes = dev.total().MemoryBytes
		}
		if v.Device == "" && s.Type == typeGPU {
			v.Device = dev.Name
		}
	}
	text(&v.Product, "productName")
	if v.PCIAddress == "" {
		v.PCIAddress = dev.address()
	}
	text(&v.PCIeRoot, "resource.kubernetes.io/pcieRoot")
	text(&v.PCIeSwitch, "pcieSwitch")
	text(&v.CPUAffinity, "cpuAffinity")
	text(&v.NVLinkGroup, "nvlinkGroup")
	text(&v.FabricClusterUUID, "fabricClusterUUID")
	text(&d.view.DriverVersion, "driverVersion")
	text(&d.view.CUDAVersion, "cudaDriverVersion")
	d.view.DriverVersion, d.view.CUDAVersion = driverText(d.view.DriverVersion), shortVersion(d.view.CUDAVersion)
	if capable := dev.attribute("migCapable").BoolValue; v.MIG == "" && capable != nil {
		v.MIG = "no"
		if *capable {
			v.MIG = "yes"
		}
	} else if v.MIG == "" && s.isPartition() {
		v.MIG = "yes"
	}
	for _, n := range []struct {
		to   **int
		name string
	}{{&v.NUMANode, "resource.kubernetes.io/numaNode"}, {&v.NVLinks, "nvlinkCount"}, {&v.FabricCliqueID,
		"fabricCliqueID"}, {&g.index, "index"}} {
		if *n.to == nil {
			*n.to = dev.number(n.name)
		}
	}
}

// claim adds a claim's allocation.
func (d *decoder) claim(c *resourceapi.ResourceClaim) {
	if c.Status.Allocation == nil {
		return
	}
	for i := range c.Status.Allocation.Devices.Results {
		r := &c.Status.Allocation.Devices.Results[i]
		if r.Driver != d.pool.Driver || !d.pools[r.Pool] {
			continue
		}
		h := allocatedTo(c, r)
		at, found := d.byName[deviceKey(r.Pool, r.Device)]
		if !found {
			d.view.Problems = append(d.view.Problems,
				fmt.Sprintf("claim %s is allocated %s, which is not published: the scheduler does not count it", h.Claim, r.Device))
			continue
		}
		s := &d.gpus[at].view.Shapes[slices.IndexFunc(d.gpus[at].view.Shapes, func(s Shape) bool { return s.Device == r.Device })]
		if !h.AdminAccess && !s.isAllocated() {
			d.left.Take(s.needs) // once, however many claims share it
		}
		if s.isShared() && !h.AdminAccess {
			has := amountsOf(d.pool.Driver, func(name resourceapi.QualifiedName) *resource.Quantity {
				if q, ok := r.ConsumedCapacity[name]; ok {
					return &q
				}
				return nil
			})
			h.Has = &has
			s.use(has)
		}
		s.Claims = append(s.Claims, h)
	}
}

func allocatedTo(c *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) Claim {
	h := Claim{Claim: c.Namespace + "/" + c.Name, UID: string(c.UID), AdminAccess: r.AdminAccess != nil && *r.AdminAccess}
	for _, user := range c.Status.ReservedFor {
		if user.APIGroup == "" && user.Resource == "pods" {
			h.Pods = append(h.Pods, user.Name)
		} else {
			h.Pods = append(h.Pods, user.Resource+"/"+user.Name)
		}
	}
	return h
}

// finish names and orders the GPUs and completes the view.
func (d *decoder) finish() {
	d.order()
	for _, g := range d.gpus {
		v := &g.view
		v.Name = "GPU" + strconv.Itoa(*g.index)
		if v.Device == "" {
			v.Device = commonName(v.Shapes)
		}
		if !slices.ContainsFunc(v.Shapes, func(s Shape) bool { return !s.isPartition() }) {
			v.Notes = append(v.Notes, "its NVLinks and NVML index are unknown: only whole and shared GPUs publish them; it is numbered by name")
		}
		v.partitions(g.devices)
		v.complete(d.full, d.left)
		d.view.GPUs = append(d.view.GPUs, *v)
	}
	d.view.Connections = connections(d.view.GPUs)
}

// order sorts the GPUs by NVML index. Partitions do not publish it: where an index is missing or not unique, GPUs are numbered
// by name, which is NVML's order, too, unless it lists GPUs that are not published.
func (d *decoder) order() {
	slices.SortStableFunc(d.gpus, func(a, b *decoded) int { return strings.Compare(a.key, b.key) })
	seen, all, asNamed := map[int]bool{}, true, true
	for i, g := range d.gpus {
		if g.index == nil || seen[*g.index] {
			all = false
			continue
		}
		seen[*g.index] = true
		asNamed = asNamed && *g.index == i
	}
	if all {
		slices.SortStableFunc(d.gpus, func(a, b *decoded) int { return cmp.Compare(*a.index, *b.index) })
		return
	}
	for i, g := range d.gpus {
		g.index = &i
	}
	if !asNamed {
		d.view.Problems = append(d.view.Problems,
			"the slices lack the NVML index of a GPU: GPUs are numbered by name here, which differs from nvidia-smi")
	}
}

// commonName is the common prefix of the names of all shapes.
func commonName(shapes []Shape) string {
	name := shapes[0].Device
	for _, s := range shapes {
		for !strings.HasPrefix(s.Device, name) {
			name = name[:len(name)-1]
		}
	}
	return strings.TrimRight(strings.TrimSuffix(strings.TrimSuffix(name, "-"), "-mig"), "-")
}

// partitions adds those that are allocated or ready.
func (g *GPU) partitions(devices []published) {
	for i := range g.Shapes {
		s := &g.Shapes[i]
		uuid := devices[i].text("uuid")
		if !s.isPartition() || !s.isAllocated() && (uuid == "" || s.closed() || s.isShared() || g.allocatedAt(s)) {
			continue
		}
		p := Partition{Profile: s.Profile, ProfileID: devices[i].profileID(), Placement: *s.Placement, State: PartitionReady, UUID: uuid}
		if s.isAllocated() {
			p.State, p.Claims = PartitionAllocated, s.Claims
		}
		g.Partitions = append(g.Partitions, p)
	}
}

// allocatedAt reports whether the partition of a shape is allocated as another shape, shared or not.
func (g *GPU) allocatedAt(s *Shape) bool {
	return slices.ContainsFunc(g.Shapes, func(other Shape) bool {
		return other.isPartition() && other.isAllocated() && other.Profile == s.Profile && *other.Placement == *s.Placement
	})
}
