// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// A container gets libraries, nvidia-smi and device files of a node, but not its state. So that programs in it can show their GPUs,
// one of the libraries contains a description of the node, appended to the ELF data.
const describingLibrary = "libnvidia-sim.so.1"

// describe makes the library.
func (s *spec) describe() ([]byte, error) {
	data, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("describe node: %w", err)
	}
	return append(stubLibrary(describingLibrary), data...), nil
}

// VisiblePartition is a partition whose device files a container has. Its profile is not visible there.
type VisiblePartition struct {
	// GPU is the index of its GPU among the visible ones.
	GPU                          int
	GPUInstance, ComputeInstance int
	UUID                         string
}

// OpenVisible opens a container's part of a node: the GPUs with device files, and the partitions with capabilities in the
// container. The node is in memory and isolated from the outside.
func OpenVisible(root string, opts ...Option) (*Node, []VisiblePartition, error) {
	s, err := readDescription(root)
	if err != nil {
		return nil, nil, err
	}
	s.GPUs = slices.DeleteFunc(s.GPUs, func(g gpuSpec) bool { return !g.visible(root) })
	s.Links = linkSpec{Kind: "none"} // groups name GPUs by indexes of the node
	if err := s.validate(); err != nil {
		return nil, nil, fmt.Errorf("open the visible part of a simulated node: %w", err)
	}
	o := newOptions(opts)
	n := newNode("", s, o)
	n.state = newCell(&nodeState{Boots: 1, BootID: bootID(s, 1)}, (*nodeState).clone)
	for range s.GPUs {
		n.gpus = append(n.gpus, newCell(&gpuState{}, (*gpuState).clone))
	}
	return n, visiblePartitions(n.devices, root), nil
}

// readDescription reads the node from the library that describes it.
func readDescription(root string) (*spec, error) {
	dir := filepath.Join(root, libraryDir)
	if flat, err := filepath.Glob(filepath.Join(root, flatLibraryDir, "libnvidia-sim.so.*.*")); err == nil && len(flat) > 0 {
		dir = filepath.Join(root, flatLibraryDir)
	}
	files, err := filepath.Glob(filepath.Join(dir, "libnvidia-sim.so.*.*"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no simulated node described in %s: %w", dir, fs.ErrNotExist)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		return nil, fmt.Errorf("read description of simulated node: %w", err)
	}
	head := len(stubLibrary(describingLibrary))
	if len(data) < head {
		return nil, fmt.Errorf("read description of simulated node: %s is too short", files[0])
	}
	return decodeSpec(data[head:])
}

// visiblePartitions finds the partitions with capabilities, by GPU and ID.
func visiblePartitions(devices []*Device, root string) []VisiblePartition {
	var found []VisiblePartition
	for _, d := range devices {
		for gi := range maxInstances {
			for ci := range maxCompute {
				name := fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", capComputeInstance(d.spec.Minor, gi, ci))
				if _, err := os.Stat(filepath.Join(root, name)); err != nil {
					continue
				}
				uuid := MIGDeviceOf(d.MIG().ComputeInstanceHandle(gi, ci, 0)).uuid()
				found = append(found, VisiblePartition{GPU: d.index, GPUInstance: gi, ComputeInstance: ci, UUID: uuid})
			}
		}
	}
	return found
}

// Usable are the devices that a CUDA program uses which has the device files below a root, such as its container's: the first of the
// partitions, whatever else is there, or the GPUs that are not in MIG mode, with IDs of instances of -1 ("CUDA can only enumerate a
// single compute instance", "CUDA will not enumerate non-MIG GPU if any compute instance is enumerated on any other GPU": NVIDIA
// Multi-Instance GPU User Guide, "CUDA Device Enumeration").
func (cs *Clients) Usable(root string) ([]VisiblePartition, error) {
	if partitions := visiblePartitions(cs.devices, root); len(partitions) > 0 {
		return partitions[:1], nil
	}
	var gpus []VisiblePartition
	for _, d := range cs.devices {
		if !d.spec.visible(root) {
			continue
		}
		st, err := cs.gpus[d.index].load()
		if err != nil {
			return nil, fmt.Errorf("read GPU %d: %w", d.index, err)
		}
		if !st.MIG {
			gpus = append(gpus, VisiblePartition{GPU: d.index, GPUInstance: -1, ComputeInstance: -1, UUID: d.spec.UUID})
		}
	}
	if len(gpus) == 0 {
		return nil, fmt.Errorf("no CUDA-capable device is detected by the device files below %s", filepath.Join(root, "dev"))
	}
	return gpus, nil
}

// visible reports whether the device file of a GPU is below a root.
func (g *gpuSpec) visible(root string) bool {
	_, err := os.Stat(filepath.Join(root, fmt.Sprintf("dev/nvidia%d", g.Minor)))
	return err == nil
}
