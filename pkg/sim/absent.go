// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"io/fs"
	"slices"
	"strconv"
)

// NVML_GPU_VIRTUALIZATION_MODE_*.
const (
	VirtualizationNone        = 0
	VirtualizationPassThrough = 1
	VirtualizationVGPU        = 2
	VirtualizationHostVGPU    = 3
)

// VirtualizationName names one of Virtualization* for the command line.
func VirtualizationName(mode int) string { return nameOf(virtualizations, mode) }

// VirtualizationModes lists the names.
func VirtualizationModes() []string { return virtualizations }

var virtualizations = []string{"none", "pass-through", "vgpu", "host-vgpu"}

// nameOf is the name of a number in a list.
func nameOf(names []string, n int) string {
	if n < 0 || n >= len(names) {
		return strconv.Itoa(n)
	}
	return names[n]
}

// SetVirtualization sets one of Virtualization*. VirtualizationNone restores the node model's.
func (h Hardware) SetVirtualization(index, mode int) error {
	if mode < 0 || mode >= len(virtualizations) {
		return fmt.Errorf("no virtualization mode %d: they are 0 to %d", mode, len(virtualizations)-1)
	}
	if err := h.checkIndex(index); err != nil {
		return err
	}
	return h.gpus[index].update(func(st *gpuState) error {
		st.Virtualization = mode
		return nil
	})
}

// without removes an index from a sorted list, or inserts it.
func without(list []int, index int, in bool) []int {
	list = slices.DeleteFunc(list, func(i int) bool { return i == index })
	if in {
		list = append(list, index)
		slices.Sort(list)
	}
	return list
}

// SetAbsent removes a GPU from the node, or adds it. A running session keeps listing a removed GPU, as lost, and lacks an added
// one: NVML enumerates GPUs when it is initialised.
func (h Hardware) SetAbsent(index int, absent bool) error {
	if err := h.checkIndex(index); err != nil {
		return err
	}
	return h.state.update(func(s *nodeState) error {
		s.Absent = without(s.Absent, index, absent)
		return h.files.moveFunction(index, absent)
	})
}

// present are the GPUs, out of n, of a new session.
func (st *nodeState) present(gpus int) []int {
	listed := []int{}
	for i := range gpus {
		if !slices.Contains(st.Absent, i) {
			listed = append(listed, i)
		}
	}
	return listed
}

// enumerated are the indexes of the session's GPUs.
func (n *Node) enumerated() []int {
	if listed := n.listed.Load(); listed != nil {
		return *listed
	}
	return nil
}

// isLost reports whether a call on a GPU fails because the GPU is missing.
func (st *nodeState) isLost(call string, index int) bool {
	if slices.Contains(st.Absent, index) {
		return true
	}
	return slices.Contains(st.Lost, index) && (call != "nvmlDeviceGetUUID" || !slices.Contains(st.Quirks, QuirkUUIDFromMemory))
}

// livePCI is the sysfs of an in-memory node without its absent GPUs.
type livePCI struct {
	*tree
	node *Node
}

// now is the current tree.
func (l livePCI) now() *tree {
	st, err := l.node.state.load()
	if err != nil || len(st.Absent) == 0 {
		return l.tree
	}
	files := l.node.spec.sysfs()
	for _, i := range st.Absent {
		delete(files, "bus/pci/devices/"+l.node.spec.GPUs[i].bdf())
	}
	return newTree(files)
}

func (l livePCI) Open(name string) (fs.File, error)          { return l.now().Open(name) }
func (l livePCI) ReadFile(name string) ([]byte, error)       { return l.now().ReadFile(name) }
func (l livePCI) ReadDir(name string) ([]fs.DirEntry, error) { return l.now().ReadDir(name) }
func (l livePCI) ReadLink(name string) (string, error)       { return l.now().ReadLink(name) }
func (l livePCI) Lstat(name string) (fs.FileInfo, error)     { return l.now().Lstat(name) }
