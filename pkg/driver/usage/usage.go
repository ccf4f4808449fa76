// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// allCores is a GPU's capacity "cores": percent of its multiprocessors.
const allCores = 100

// GPU is the usage of one GPU.
type GPU struct {
	// Device is the name of the whole GPU's device.
	Device string
	// Memory in bytes and Cores in percent of the multiprocessors are available to claims in total. Memory is zero if the board
	// does not report it; both are zero if no device of the GPU is published.
	Memory, Cores int64
	// Tiers are those with published or allocated devices, in order of the function Tiers.
	Tiers []Tier
}

// Tier is the usage of one tier of a GPU.
type Tier struct {
	Tier v1alpha1.Tier
	// Devices are published, Allocated have a claim, and each of Free can be allocated now, but not necessarily all: partitions of
	// a GPU overlap.
	Devices, Allocated, Free int
	// Shares is the number of shares that fit on an empty GPU; for partitions, with the profile that allows the most. SharesFree is
	// the number that still fit, each with the least amounts and on as many partitions as fit together; SharesFreeDefault is that
	// for claims without amounts.
	Shares, SharesAllocated, SharesFree, SharesFreeDefault int64
	// Memory in bytes and Cores in percent of the GPU's multiprocessors are allocated to claims. Shares without such an amount
	// count as none.
	Memory int64
	Cores  float64
}

// The tiers of shared partitions, which policies have in tier mig.
const (
	TierMIGTimeSlice v1alpha1.Tier = "migTimeSlice"
	TierMIGMPS       v1alpha1.Tier = "migMPS"
)

// Tiers lists all tiers.
func Tiers() []v1alpha1.Tier { return append(v1alpha1.Tiers(), TierMIGTimeSlice, TierMIGMPS) }

// IsShared reports whether the tier has shares.
func (t *Tier) IsShared() bool {
	return t.Tier != v1alpha1.TierExclusive && t.Tier != v1alpha1.TierMIG
}

// Of computes usage from published devices, their taints, and the records of claims. Claims with admin access are not counted, nor are
// devices that are Released.
func Of(node *policy.Node, taints []nodeslices.Taint, all []*records.Record) []GPU {
	closed := map[string]bool{}
	for _, t := range taints {
		closed[t.Device] = closed[t.Device] || t.Effect != resourceapi.DeviceTaintEffectNone
	}
	byGPU := map[string][]*records.Device{}
	for _, r := range all {
		for i := range r.Devices {
			if d := &r.Devices[i]; !d.AdminAccess && !d.Released {
				byGPU[d.GPU] = append(byGPU[d.GPU], d)
			}
		}
	}
	gpus := make([]GPU, 0, len(node.GPUs))
	for i := range node.GPUs {
		g := &node.GPUs[i]
		c := newCount(g, node.Offer(g), byGPU[g.PCI.DeviceName()], closed)
		gpus = append(gpus, c.count(node.Shapes(g)))
	}
	return gpus
}

// count counts one GPU.
type count struct {
	gpu     *gpu.GPU
	offer   *policy.Offer
	devices []*records.Device
	closed  map[string]bool
	// counters are the GPU's, left the part not consumed by allocated partitions.
	counters []gpu.Counter
	left     map[string]int64
	// total and free are the shares that fit on an empty GPU, and on this one.
	total, free rooms
	tiers       map[v1alpha1.Tier]*Tier
}

func newCount(g *gpu.GPU, offer *policy.Offer, devices []*records.Device, closed map[string]bool) *count {
	c := &count{gpu: g, offer: offer, devices: devices, closed: closed, counters: g.Counters(), left: map[string]int64{},
		tiers: map[v1alpha1.Tier]*Tier{}}
	for _, counter := range c.counters {
		c.left[counter.Name] = counter.Value
	}
	c.total, c.free = rooms{from: maps.Clone(c.left)}, rooms{from: c.left}
	seen := map[string]bool{}
	for _, d := range devices {
		if s, ok := c.partition(d); ok && !seen[d.Device] { // once, however many claims share it
			seen[d.Device] = true
			for _, taken := range s.ConsumesOf(c.counters) {
				c.left[taken.Name] -= taken.Value
			}
		}
	}
	return c
}

// count counts allocations, then the free published shapes.
func (c *count) count(shapes []gpu.Shape) GPU {
	counted := GPU{Device: c.gpu.PCI.DeviceName()}
	seen := map[string]bool{}
	for _, d := range c.devices {
		t := c.tier(TierOf(d))
		if !seen[d.Device] {
			seen[d.Device] = true
			t.Allocated++
		}
		c.add(t, d)
	}
	for _, s := range shapes {
		c.shape(s, seen[s.Name()])
	}
	if len(shapes) > 0 {
		counted.Memory, counted.Cores = memoryOf(c.gpu), allCores
	}
	for _, tier := range Tiers() {
		if t := c.tiers[tier]; t != nil {
			counted.Tiers = append(counted.Tiers, *t)
		}
	}
	return counted
}

// shape counts a published shape.
func (c *count) shape(s gpu.Shape, allocated bool) {
	t := c.tier(tierOfShape(s))
	t.Devices++
	open := !c.offer.IsWithdrawn(s) && !c.closed[s.Name()]
	if !s.IsShare() {
		if open && c.fits(s) {
			t.Free++
		}
		return
	}
	needs := s.ConsumesOf(c.counters)
	if r := c.total.of(s); r.take(needs) {
		r.shares += c.offer.Sharing(s).Shares
		t.Shares = max(t.Shares, r.shares)
	}
	free := c.sharesFree(s, func(cut policy.Cut) int64 { return cut.Minimum })
	if !open || free == 0 || !allocated && s.IsPartition() && !c.fits(s) {
		return
	}
	t.Free++
	if r := c.free.of(s); allocated || r.take(needs) {
		r.shares += free
		r.byDefault += c.sharesFree(s, func(cut policy.Cut) int64 { return cut.Default })
		t.SharesFree, t.SharesFreeDefault = max(t.SharesFree, r.shares), max(t.SharesFreeDefault, r.byDefault)
	}
}

// rooms are, by tier and profile, a GPU's counters left by the shares of its devices.
type rooms struct {
	from map[string]int64
	all  map[roomKey]*room
}

type roomKey struct {
	tier    v1alpha1.Tier
	profile int
}

// room is the remaining counters, and the number of shares so far, with the least and with the default amounts.
type room struct {
	left              map[string]int64
	shares, byDefault int64
}

// of is the room of a shape's tier and profile.
func (r *rooms) of(s gpu.Shape) *room {
	key := roomKey{tier: tierOfShape(s)}
	if s.IsPartition() {
		key.profile = s.Profile.ID
	}
	if r.all[key] == nil {
		if r.all == nil {
			r.all = map[roomKey]*room{}
		}
		r.all[key] = &room{left: maps.Clone(r.from)}
	}
	return r.all[key]
}

// take consumes a device's counters, or nothing if it does not fit.
func (r *room) take(needs []gpu.Counter) bool {
	for _, n := range needs {
		if r.left[n.Name] < n.Value {
			return false
		}
	}
	for _, n := range needs {
		r.left[n.Name] -= n.Value
	}
	return true
}

func (c *count) tier(t v1alpha1.Tier) *Tier {
	if c.tiers[t] == nil {
		c.tiers[t] = &Tier{Tier: t}
	}
	return c.tiers[t]
}

// add counts a device's part of the GPU.
func (c *count) add(t *Tier, d *records.Device) {
	switch {
	case d.Partition != nil && !d.IsShared():
		if s, ok := c.partition(d); ok {
			t.Memory += int64(s.Profile.Memory)
			t.Cores += c.cores(s)
		}
	case d.Partition != nil:
		t.SharesAllocated += d.Share.Shares
		t.Memory += d.Share.Memory
		if s, ok := c.partition(d); ok {
			t.Cores += c.cores(s) * float64(d.Share.Cores) / allCores
		}
	case t.Tier == v1alpha1.TierExclusive:
		t.Memory += memoryOf(c.gpu)
		t.Cores += allCores
	default:
		t.SharesAllocated += d.Share.Shares
		t.Memory += d.Share.Memory
		t.Cores += float64(d.Share.Cores)
	}
}

// cores are the multiprocessors of a partition in percent of the GPU's; zero if they are not known.
func (c *count) cores(s gpu.Shape) float64 {
	most := multiprocessors(c.gpu)
	if most == 0 {
		return 0
	}
	return allCores * float64(s.Profile.Multiprocessors) / float64(most)
}

// fits reports whether a whole GPU or a partition can be allocated alongside existing allocations.
func (c *count) fits(s gpu.Shape) bool {
	if !s.IsPartition() {
		return len(c.devices) == 0
	}
	for _, taken := range s.ConsumesOf(c.counters) {
		if c.left[taken.Name] < taken.Value {
			return false
		}
	}
	return !slices.ContainsFunc(c.devices, func(d *records.Device) bool {
		return d.Partition == nil || d.Partition.Placement.Overlaps(s.Placement)
	})
}

// sharesFree is how many more claims of equal amounts a shared GPU or partition can have; none if its GPU or partition is allocated
// otherwise.
func (c *count) sharesFree(s gpu.Shape, each func(policy.Cut) int64) int64 {
	offer := c.offer.Sharing(s)
	free, memory, cores := offer.Shares, offer.Memory.Total, offer.Cores.Total
	for _, d := range c.devices {
		if d.Device != s.Name() {
			if s.IsPartition() && d.Partition != nil && !d.Partition.Placement.Overlaps(s.Placement) {
				continue
			}
			return 0
		}
		if d.Share == nil { // noted while the GPU was unknown
			return 0
		}
		free -= d.Share.Shares
		memory -= d.Share.Memory
		cores -= d.Share.Cores
	}
	for _, amount := range []struct {
		left int64
		cut  policy.Cut
	}{{memory, offer.Memory}, {cores, offer.Cores}} {
		if size := each(amount.cut); amount.cut.Total > 0 && size > 0 {
			free = min(free, amount.left/size)
		}
	}
	return max(free, 0)
}

// partition is the shape of a device that is a partition; false for others, and for a profile that the GPU does not have.
func (c *count) partition(d *records.Device) (gpu.Shape, bool) {
	if d.Partition == nil {
		return gpu.Shape{}, false
	}
	profile := c.gpu.MIG.Profile(d.Partition.ProfileID)
	return gpu.Shape{GPU: c.gpu, Profile: profile, Placement: d.Partition.Placement}, profile != nil
}

// TierOf is the tier of an allocated device. A claim that shares a GPU among its own processes has the whole GPU.
func TierOf(d *records.Device) v1alpha1.Tier {
	by := gpu.Share("")
	if d.IsShared() {
		by = d.Share.Kind
	}
	return tierOfType(gpu.TypeOf(d.Partition != nil, by))
}

// tierOfType is the tier of a type of device.
func tierOfType(t gpu.Type) v1alpha1.Tier {
	switch t {
	case gpu.TypeMIG:
		return v1alpha1.TierMIG
	case gpu.TypeTimeSlice:
		return v1alpha1.TierTimeSlice
	case gpu.TypeMPS:
		return v1alpha1.TierMPS
	case gpu.TypeMIGTimeSlice:
		return TierMIGTimeSlice
	case gpu.TypeMIGMPS:
		return TierMIGMPS
	default:
		return v1alpha1.TierExclusive
	}
}

// TierOfName is the tier of a device by its name, see gpu.Shape; false for names of other drivers.
func TierOfName(device string) (v1alpha1.Tier, bool) {
	m := deviceName.FindStringSubmatch(device)
	if m == nil {
		return "", false
	}
	return tierOfType(gpu.TypeOf(m[1] != "", gpu.Share(strings.TrimPrefix(m[2], "-")))), true
}

// deviceName matches the names of Cleave's devices (gpu.Shape.Name), and in them the parts of a partition and of a share.
var deviceName = regexp.MustCompile(`^gpu-[0-9a-f]{4,8}-[0-9a-f]{2}-[0-9a-f]{2}-[0-7](-mig-[0-9]+-[0-9]+)?(-timeslice|-mps)?$`)

func tierOfShape(s gpu.Shape) v1alpha1.Tier { return tierOfType(s.Type()) }

// memoryOf is the memory of a GPU in bytes; zero if it is unknown, for which NVML has all ones.
func memoryOf(g *gpu.GPU) int64 {
	if g.Memory == nil || *g.Memory > 1<<62 {
		return 0
	}
	return int64(*g.Memory)
}

// multiprocessors are those of the profile that has the most, which is the one that fills the GPU.
func multiprocessors(g *gpu.GPU) int {
	most := 0
	for i := range g.MIG.Profiles {
		most = max(most, g.MIG.Profiles[i].Multiprocessors)
	}
	return most
}
