// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// readLinks reads the active NVLinks and their remote ends. A board whose first link is not supported has none.
func readLinks(dev Device, g *gpu.GPU, e *errs) {
	var up []int
	nvlinks := dev.Links()
	for link := range nvml.NVLINK_MAX_LINKS {
		active, err := nvlinks.NVLinkState(link)
		if !e.ok(err) {
			if link == 0 {
				return
			}
			break
		}
		if active {
			up = append(up, link)
		}
	}
	g.NVLinks = &gpu.NVLinks{Active: len(up)}
	if len(up) == 0 {
		return
	}
	// All links of a board have the same version.
	if version, err := nvlinks.NVLinkVersion(up[0]); e.hint(err) {
		g.NVLinks.Version = nvlinkVersions[version]
	}
	g.NVLinks.MBps = linkSpeed(dev, up, e)
	readRemotes(nvlinks, g.NVLinks, up, e)
}

// linkSpeed is the total speed of links in one direction in MB/s, 0 unless the speed of every link is known. One call
// reads all of them, along with the common speed that older drivers report instead.
func linkSpeed(dev Device, links []int, e *errs) int64 {
	var fields []Field
	for _, link := range links {
		fields = append(fields, Field{ID: nvml.FI_DEV_NVLINK_GET_SPEED, Scope: link})
	}
	fields = append(fields, Field{ID: nvml.FI_DEV_NVLINK_SPEED_MBPS_COMMON})
	values, err := dev.FieldValues(fields)
	if !e.hint(err) || len(values) != len(fields) {
		return 0
	}
	common := values[len(links)]
	sum := int64(0)
	for _, v := range values[:len(links)] {
		if v.Err != nil || v.Value == 0 {
			v = common
		}
		if v.Err != nil || v.Value == 0 || v.Value > math.MaxInt32 {
			return 0
		}
		sum += int64(v.Value)
	}
	return sum
}

// readRemotes reads the remote ends of active links.
func readRemotes(nvlinks Links, links *gpu.NVLinks, up []int, e *errs) {
	count := map[gpu.PCIAddress]int{}
	for _, link := range up {
		kind, err := nvlinks.NVLinkRemoteDeviceType(link)
		if !e.hint(err) {
			continue
		}
		switch kind {
		case int(nvml.NVLINK_DEVICE_TYPE_SWITCH):
			links.Switched = true
		case int(nvml.NVLINK_DEVICE_TYPE_GPU):
			remote, err := nvlinks.NVLinkRemotePCIInfo(link)
			if !e.hint(err) {
				continue
			}
			if address, err := gpu.ParsePCIAddress(remote.BusID); err == nil {
				count[address]++
			}
		}
	}
	for address, n := range count {
		links.Peers = append(links.Peers, gpu.NVLinkPeer{PCI: address, Links: n})
	}
	slices.SortFunc(links.Peers, func(a, b gpu.NVLinkPeer) int { return a.PCI.Compare(b.PCI) })
}

// readFabric reads which multi-node NVLink domain the GPU has joined. The domain of a single node's switches has no UUID.
func readFabric(nvlinks Links, g *gpu.GPU, e *errs) {
	if g.NVLinks == nil {
		return // no link, no domain
	}
	info, err := nvlinks.FabricInfo()
	if !e.hint(err) {
		return
	}
	g.FabricState = info.registration()
	if g.FabricState == gpu.FabricFailed {
		g.NVLinks.Active, g.NVLinks.Peers = 0, nil // trained but unusable
	}
	if g.NVLinks.Active == 0 || g.FabricState != gpu.FabricCompleted || info.ClusterUUID == [16]byte{} {
		return
	}
	u := info.ClusterUUID
	g.Fabric = &gpu.Fabric{
		ClusterUUID: fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:]),
		CliqueID:    info.CliqueID,
	}
}
