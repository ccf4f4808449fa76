// SPDX-License-Identifier: Apache-2.0

package nodeslices

import (
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// maxNearNodes bounds the NUMA nodes listed besides a GPU's own: the API allows 48 values per device.
const maxNearNodes = 15

// attributeSet collects attributes. Unknown values are left out.
type attributeSet map[resourceapi.QualifiedName]resourceapi.DeviceAttribute

// attributes of a shape: those of its GPU and its own; for a partition, only the selected ones.
func (ds *devices) attributes(s gpu.Shape) attributeSet {
	node, g := ds.node, s.GPU
	a := attributeSet{}
	a.text("type", string(s.Type()))
	if p := s.Profile; p != nil {
		a.text("parentUUID", g.UUID) // its own UUID exists only while the partition does
		a.text("profile", p.Name)
		a.number("giProfileID", &p.ID)
		a.number("placementStart", &s.Placement.Start)
		a.number("placementSize", &s.Placement.Size)
	} else {
		a.text("uuid", g.UUID)
	}
	a.text("productName", g.ProductName)
	a.text("brand", g.Brand)
	a.text("architecture", g.Architecture)
	a.text("addressingMode", g.AddressingMode)
	// A whole GPU or partition of one claim: the memory is limited only by the hardware.
	enforcement := policy.NotEnforced
	if sharing := ds.node.Offer(g).Sharing(s); sharing != nil {
		enforcement = sharing.Enforcement
		shares := int(sharing.Shares)
		a.number("shares", &shares)
		if sharing.Spread {
			a.text("sharePlacement", string(v1alpha1.PlacementSpread))
		}
	}
	a.text("memoryEnforcement", string(enforcement))
	a.number("index", &g.Index)
	a.number("minor", &g.Minor)
	a.flag("eccEnabled", g.ECC)
	a.flag("migCapable", &g.MIG.Capable)
	a.version("driverVersion", node.DriverVersion)
	if node.CUDAVersion != (gpu.Version{}) {
		a.version("cudaDriverVersion", node.CUDAVersion.String())
	}
	if g.ComputeCapability != nil {
		a.version("cudaComputeCapability", g.ComputeCapability.String())
	}
	a.text(deviceattribute.StandardDeviceAttributePCIBusID, g.PCI.String())
	a.place(g, ds.view.Lists)
	if slices.Contains(ds.node.Offer(g).Publish.Attributes, v1alpha1.AttributePreviousNUMANode) {
		a.number(v1alpha1.AttributePreviousNUMANode, g.NUMANode)
	}
	if s.IsPartition() {
		ds.lighten(a, s, &ds.node.Offer(g).Publish)
	} else {
		a.links(g, ds.nvlinkGroups[g.PCI]) // partitions have neither NVLink nor peers (NVIDIA MIG user guide)
	}
	return a
}

// The attributes of partitions: an 8-GPU node has some 200 partitions, and each attribute costs the API server and the scheduler
// memory for every one. The GPU that parentUUID names has the rest.
var (
	// always are those that DeviceClasses select by and cleave inspect needs. Profile ID and start are in the device's name.
	always = []resourceapi.QualifiedName{"type", "profile", "parentUUID", "placementSize"}
	// usual are those commonly used in selectors of claims.
	usual = []resourceapi.QualifiedName{
		"productName", "architecture", "cudaComputeCapability", "driverVersion",
		deviceattribute.StandardDeviceAttributeNUMANode, deviceattribute.StandardDeviceAttributePCIeRoot,
	}
	// ofShares are those that shared devices add for selectors.
	ofShares = []resourceapi.QualifiedName{"memoryEnforcement", "sharePlacement", "shares"}
	// nvidias are the remaining ones of NVIDIA's driver, for compatible mode.
	nvidias = []resourceapi.QualifiedName{"brand", "addressingMode", "cudaDriverVersion", deviceattribute.StandardDeviceAttributePCIBusID}
)

// lighten removes the attributes that a partition does not carry. Shared partitions, which are few, carry more.
func (ds *devices) lighten(a attributeSet, s gpu.Shape, p *policy.Publish) {
	for name := range a {
		carried := slices.Contains(usual, name) || s.IsShare() && slices.Contains(ofShares, name) ||
			ds.view.Compatible && slices.Contains(nvidias, name) ||
			slices.Contains(p.Attributes, string(name))
		if !slices.Contains(always, name) && (!carried || slices.Contains(p.OmitAttributes, string(name))) {
			delete(a, name)
		}
	}
}

// place sets a GPU's position in the topology.
func (a attributeSet) place(g *gpu.GPU, lists bool) {
	a.text(deviceattribute.StandardDeviceAttributePCIeRoot, g.PCIeRoot())
	a.text("pcieSwitch", g.PCIeSwitch())
	a.text("cpuAffinity", g.CPUAffinity)
	if !lists || g.NUMANode == nil {
		a.number(deviceattribute.StandardDeviceAttributeNUMANode, g.NUMANode)
		return
	}
	nodes := []int64{int64(*g.NUMANode)}
	for _, n := range g.NearNUMANodes[:min(len(g.NearNUMANodes), maxNearNodes)] {
		nodes = append(nodes, int64(n))
	}
	a[deviceattribute.StandardDeviceAttributeNUMANode] = resourceapi.DeviceAttribute{IntValues: nodes}
}

// links sets a GPU's links to others.
func (a attributeSet) links(g *gpu.GPU, group string) {
	a.text("nvlinkGroup", group)
	if l := g.NVLinks; l != nil {
		a.number("nvlinkCount", &l.Active)
		if l.Version != (gpu.Version{}) {
			a.version("nvlinkVersion", l.Version.String())
		}
		if speed := int(l.MBps); speed > 0 {
			a.number("nvlinkBandwidthMBps", &speed)
		}
	}
	if f := g.Fabric; f != nil {
		a.text("fabricClusterUUID", f.ClusterUUID)
		a.number("fabricCliqueID", &f.CliqueID)
	}
}

// text sets a string. One too long for the API is left out, as the whole slice would be rejected.
func (a attributeSet) text(name resourceapi.QualifiedName, v string) {
	if v != "" && len(v) <= resourceapi.DeviceAttributeMaxValueLength {
		a[name] = resourceapi.DeviceAttribute{StringValue: &v}
	}
}

func (a attributeSet) number(name resourceapi.QualifiedName, v *int) {
	if v != nil {
		n := int64(*v)
		a[name] = resourceapi.DeviceAttribute{IntValue: &n}
	}
}

func (a attributeSet) flag(name resourceapi.QualifiedName, v *bool) {
	if v != nil {
		b := *v
		a[name] = resourceapi.DeviceAttribute{BoolValue: &b}
	}
}

// version sets a semantic version; one that cannot be converted is left out.
func (a attributeSet) version(name resourceapi.QualifiedName, v string) {
	if v = semantic(v); v != "" {
		a[name] = resourceapi.DeviceAttribute{VersionValue: &v}
	}
}

// semantic converts "580.95.05" to the semantic version 580.95.5, which allows no leading zeros, and "9.0" to 9.0.0. It returns ""
// for anything but one to three numbers.
func semantic(v string) string {
	parts := strings.Split(v, ".")
	if len(parts) > 3 {
		return ""
	}
	numbers := []string{"0", "0", "0"}
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 32)
		if err != nil {
			return ""
		}
		numbers[i] = strconv.FormatUint(n, 10)
	}
	return strings.Join(numbers, ".")
}
