// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"regexp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/publish"
	"github.com/cleave-dra/cleave/pkg/records"
)

// allCores is what a GPU has of the capacity "cores": percent of its multiprocessors.
const allCores = 100

// GPU is how much of one GPU is allocated and free.
type GPU struct {
	// Device is the name of the whole GPU's device.
	Device string
	// Memory in bytes and Cores in percent of the multiprocessors are what claims can have of the GPU. Memory is zero where the
	// board does not report it; both are zero where nothing of the GPU is published.
	Memory, Cores int64
	// Tiers are those that the GPU is published in, and those that something is allocated of, in order of v1alpha1.Tiers.
	Tiers []Tier
}

// Tier is how much is allocated and free in one tier of a GPU.
type Tier struct {
	Tier v1alpha1.Tier
	// Devices are published, Allocated have a claim, and Free can be allocated to a claim now, one of them at a time: partitions
	// of a GPU overlap.
	Devices, Allocated, Free int
	// Shares can be allocated at once on an empty GPU; SharesFree are how many more can be now, each with the least amounts, and
	// SharesFreeDefault for claims that ask for no amounts.
	Shares, SharesAllocated, SharesFree, SharesFreeDefault int64
	// Memory in bytes and Cores in percent of the GPU's multiprocessors are allocated to claims. Where shares do not count one of
	// them, they have none of it.
	Memory int64
	Cores  float64
}

// IsShared reports whether the tier has shares.
func (t *Tier) IsShared() bool { return t.Tier == v1alpha1.TierTimeSlice || t.Tier == v1alpha1.TierMPS }

// Of counts by what is published, in which taints name devices, and by the records of claims. Claims with admin access are
// allocated nothing.
func Of(node *policy.Node, taints []publish.Taint, all []*records.Record) []GPU {
	closed := map[string]bool{}
	for _, t := range taints {
		closed[t.Device] = closed[t.Device] || t.Effect != resourceapi.DeviceTaintEffectNone
	}
	byGPU := map[string][]*records.Device{}
	for _, r := range all {
		for i := range r.Devices {
			if d := &r.Devices[i]; !d.AdminAccess {
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
	// counters are the GPU's, left what partitions that are allocated leave of them.
	counters []gpu.Counter
	left     map[string]int64
	tiers    map[v1alpha1.Tier]*Tier
}

func newCount(g *gpu.GPU, offer *policy.Offer, devices []*records.Device, closed map[string]bool) *count {
	c := &count{gpu: g, offer: offer, devices: devices, closed: closed, counters: g.Counters(), left: map[string]int64{},
		tiers: map[v1alpha1.Tier]*Tier{}}
	for _, counter := range c.counters {
		c.left[counter.Name] = counter.Value
	}
	for _, d := range devices {
		if s, ok := c.partition(d); ok {
			for _, taken := range s.ConsumesOf(c.counters) {
				c.left[taken.Name] -= taken.Value
			}
		}
	}
	return c
}

// count counts what is allocated, then what of the published shapes is free.
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
		t := c.tier(tierOfShape(s))
		t.Devices++
		if s.IsShare() {
			t.Shares = c.offer.Sharing(s.Share).Shares
		}
		if c.offer.IsWithdrawn(s) || c.closed[s.Name()] {
			continue
		}
		if s.IsShare() {
			t.SharesFree = c.sharesFree(s, func(cut policy.Cut) int64 { return cut.Minimum })
			t.SharesFreeDefault = c.sharesFree(s, func(cut policy.Cut) int64 { return cut.Default })
		}
		if s.IsShare() && t.SharesFree > 0 || !s.IsShare() && c.fits(s) {
			t.Free++
		}
	}
	if len(shapes) > 0 {
		counted.Memory, counted.Cores = memoryOf(c.gpu), allCores
	}
	for _, tier := range v1alpha1.Tiers() {
		if t := c.tiers[tier]; t != nil {
			counted.Tiers = append(counted.Tiers, *t)
		}
	}
	return counted
}

func (c *count) tier(t v1alpha1.Tier) *Tier {
	if c.tiers[t] == nil {
		c.tiers[t] = &Tier{Tier: t}
	}
	return c.tiers[t]
}

// add counts what a device has of the GPU.
func (c *count) add(t *Tier, d *records.Device) {
	switch {
	case d.Partition != nil:
		s, ok := c.partition(d)
		if !ok {
			return
		}
		t.Memory += int64(s.Profile.Memory)
		if most := multiprocessors(c.gpu); most > 0 {
			t.Cores += allCores * float64(s.Profile.Multiprocessors) / float64(most)
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

// fits reports whether a whole GPU or a partition can be allocated alongside what is.
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

// sharesFree is how many more claims of equal amounts a shared GPU can have; none where the GPU is allocated in another tier.
func (c *count) sharesFree(s gpu.Shape, each func(policy.Cut) int64) int64 {
	offer := c.offer.Sharing(s.Share)
	free, memory, cores := offer.Shares, offer.Memory.Total, offer.Cores.Total
	for _, d := range c.devices {
		if TierOf(d) != tierOfShape(s) {
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
	at := slices.IndexFunc(c.gpu.MIG.Profiles, func(p gpu.Profile) bool { return p.ID == d.Partition.ProfileID })
	if at < 0 {
		return gpu.Shape{}, false
	}
	return gpu.Shape{GPU: c.gpu, Profile: &c.gpu.MIG.Profiles[at], Placement: d.Partition.Placement}, true
}

// TierOf is the tier of an allocated device. A claim that shares a GPU among its own processes has the whole GPU.
func TierOf(d *records.Device) v1alpha1.Tier {
	switch {
	case d.Partition != nil:
		return v1alpha1.TierMIG
	case d.Share == nil || d.Share.Exclusive:
		return v1alpha1.TierExclusive
	case d.Share.Kind == gpu.MPS:
		return v1alpha1.TierMPS
	default:
		return v1alpha1.TierTimeSlice
	}
}

// TierOfName is the tier of a device by its name, see gpu.Shape; false where it is not named as Cleave names devices.
func TierOfName(device string) (v1alpha1.Tier, bool) {
	m := deviceName.FindStringSubmatch(device)
	if m == nil {
		return "", false
	}
	switch {
	case m[1] == "":
		return v1alpha1.TierExclusive, true
	case m[1] == "-"+string(gpu.TimeSlice):
		return v1alpha1.TierTimeSlice, true
	case m[1] == "-"+string(gpu.MPS):
		return v1alpha1.TierMPS, true
	default:
		return v1alpha1.TierMIG, true
	}
}

// deviceName matches the names of Cleave's devices (gpu.Shape.Name), and in them what follows the name of the GPU.
var deviceName = regexp.MustCompile(`^gpu-[0-9a-f]{4,8}-[0-9a-f]{2}-[0-9a-f]{2}-[0-7](-timeslice|-mps|-mig-[0-9]+-[0-9]+|)$`)

func tierOfShape(s gpu.Shape) v1alpha1.Tier {
	switch {
	case s.IsPartition():
		return v1alpha1.TierMIG
	case s.Share == gpu.MPS:
		return v1alpha1.TierMPS
	case s.IsShare():
		return v1alpha1.TierTimeSlice
	default:
		return v1alpha1.TierExclusive
	}
}

// memoryOf is the memory of a GPU in bytes; zero where it is unknown, for which NVML has all ones.
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
