// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"strconv"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Words for connections that attributes do not show exactly.
const (
	atMostRoot = "<=" + string(gpu.ByRoot)
	atMostNode = "<=" + string(gpu.ByNode)
)

// connections derives the topology matrix from attributes.
func connections(gpus []GPU) [][]string {
	members := map[string]int{}
	for i := range gpus {
		members[gpus[i].NVLinkGroup]++
	}
	all := [][]string{}
	for i := range gpus {
		var row []string
		for j := range gpus {
			word := string(gpu.SameGPU)
			if i != j {
				word = connection(&gpus[i], &gpus[j], members[gpus[i].NVLinkGroup])
			}
			row = append(row, word)
		}
		all = append(all, row)
	}
	return all
}

// connection is the connection between two GPUs; members is the size of a's NVLink group. All links of a pair connect the
// two, and those of a fabric lead to its switches. In other groups the number of links of a pair is unknown.
func connection(a, b *GPU, members int) string {
	switch {
	case a.NVLinkGroup != "" && a.NVLinkGroup == b.NVLinkGroup:
		fabric := a.FabricClusterUUID != "" && a.FabricClusterUUID == b.FabricClusterUUID
		if (members == 2 || fabric) && a.NVLinks != nil && b.NVLinks != nil && min(*a.NVLinks, *b.NVLinks) > 0 {
			return string(gpu.ByNVLink) + strconv.Itoa(min(*a.NVLinks, *b.NVLinks))
		}
		return string(gpu.ByNVLink)
	case a.PCIeSwitch != "" && a.PCIeSwitch == b.PCIeSwitch:
		return string(gpu.BySwitch)
	case a.PCIeRoot != "" && a.PCIeRoot == b.PCIeRoot:
		return atMostRoot
	case a.NUMANode == nil || b.NUMANode == nil:
		return string(gpu.UnknownWay)
	case *a.NUMANode != *b.NUMANode:
		return string(gpu.BySystem)
	case a.PCIeRoot == "" || b.PCIeRoot == "":
		return atMostNode
	default:
		return string(gpu.ByNode)
	}
}
