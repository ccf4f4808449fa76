// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"strconv"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// Words for what attributes do not tell exactly.
const (
	atMostRoot = "<=" + string(gpu.ByRoot)
	atMostNode = "<=" + string(gpu.ByNode)
)

// connections tells from attributes how GPUs reach each other.
func connections(gpus []GPU) [][]string {
	members := map[string]int{}
	for i := range gpus {
		members[gpus[i].NVLinkGroup]++
	}
	all := [][]string{}
	for i := range gpus {
		var row []string
		for j := range gpus {
			way := string(gpu.SameGPU)
			if i != j {
				way = wayByAttributes(&gpus[i], &gpus[j], members[gpus[i].NVLinkGroup])
			}
			row = append(row, way)
		}
		all = append(all, row)
	}
	return all
}

// wayByAttributes is the way between two GPUs; members is how many are in the NVLink group of a. The links of a pair are
// all between the two, and those of a fabric lead to its switches. In another group they may lead to switches, or be shared
// out between the others.
func wayByAttributes(a, b *GPU, members int) string {
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
