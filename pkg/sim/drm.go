// SPDX-License-Identifier: Apache-2.0

package sim

import "fmt"

// Numbers of DRM devices (Linux, include/uapi/drm and Documentation/admin-guide/devices.txt).
const (
	majorDRM      = 226
	firstRendered = 128
)

// drmNodes are the device files of a GPU for graphics programs: nvidia-drm registers two for each.
func drmNodes(index int) []deviceNode {
	return []deviceNode{
		{fmt.Sprintf("dev/dri/card%d", index), majorDRM, index},
		{fmt.Sprintf("dev/dri/renderD%d", firstRendered+index), majorDRM, firstRendered + index},
	}
}

// addDRM adds the DRM devices of a GPU to /sys.
func (s *spec) addDRM(files map[string]treeFile, index int) {
	for _, n := range drmNodes(index) {
		name := n.name[len("dev/dri/"):]
		addFile(files, fmt.Sprintf("%s/drm/%s/dev", deviceDir(&s.GPUs[index].pciEntry), name), fmt.Sprintf("%d:%d\n", n.major, n.minor))
	}
}
