// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"embed"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

//go:embed models/*.json
var modelFiles embed.FS

// specSchema is the version of spec; a root of another version must be recreated.
const specSchema = 1

// model is a file of models/: the composition of a node, before identities are assigned.
type model struct {
	spec
	Board          string `json:"board"`
	Product        string `json:"product"`
	PCIDeviceID    string `json:"pciDeviceID"`
	PCISubsystemID string `json:"pciSubsystemID"`
}

// spec is the immutable part of a node.
type spec struct {
	Schema        int    `json:"schema"`
	Name          string `json:"name"`
	Description   string `json:"description"`
	DriverVersion string `json:"driverVersion"`
	// CUDAVersion is 1000*major + 10*minor.
	CUDAVersion int `json:"cudaVersion"`
	// CPUsPerNUMA is the number of cores of one NUMA node, ThreadsPerCore how many CPUs each of them is, and
	// NUMAPerSocket the number of NUMA nodes of a socket. Zero stands for one.
	CPUsPerNUMA    int        `json:"cpusPerNUMA"`
	ThreadsPerCore int        `json:"threadsPerCore,omitempty"`
	NUMAPerSocket  int        `json:"numaPerSocket,omitempty"`
	Links          linkSpec   `json:"links"`
	Fabric         *fabric    `json:"fabric"`
	Boards         []Board    `json:"boards"`
	GPUs           []gpuSpec  `json:"gpus"`
	NVSwitches     []pciEntry `json:"nvswitches"`
	Others         []pciEntry `json:"others"`
	// DeviceNodes means that the node keeps device files under its root.
	DeviceNodes bool `json:"deviceNodes"`
	// DevRoot is the root of the device files, if that is not the node's.
	DevRoot string `json:"devRoot,omitempty"`
	// PassThrough means that the node is a virtual machine with passed-through GPUs, which it cannot reset.
	PassThrough bool `json:"passThrough,omitempty"`
}

// linkSpec is the wiring of NVLinks: "none"; "switch": to the NVSwitches of the node; "fabric": to switches outside; "groups":
// directly between the GPUs of each group, evenly distributed.
type linkSpec struct {
	Kind   string  `json:"kind"`
	Groups [][]int `json:"groups,omitempty"`
}

// fabric is the NVLink domain that the node's GPUs belong to (nvmlDeviceGetGpuFabricInfoV).
type fabric struct {
	Clique      int    `json:"clique"`
	ClusterUUID string `json:"clusterUUID"`
}

// pciEntry is a PCI function.
type pciEntry struct {
	// Path in sysfs from the root complex down: "pci0000:15/0000:15:01.0/…/0000:1b:00.0".
	Path   string `json:"path"`
	NUMA   int    `json:"numa"` // -1: none
	Vendor string `json:"vendor,omitempty"`
	Device string `json:"device,omitempty"`
	Class  string `json:"class,omitempty"`
}

// gpuSpec is one GPU of a node, in order of PCI address, which is the order of NVML indexes.
type gpuSpec struct {
	pciEntry
	Minor  int    `json:"minor"`
	Module int    `json:"module"`
	UUID   string `json:"uuid"`
	Serial string `json:"serial"`
	// Board is the index into the boards of the spec.
	Board int `json:"boardIndex"`
}

// bdf is the PCI address as sysfs writes it, the last part of the path.
func (e *pciEntry) bdf() string {
	return e.Path[strings.LastIndexByte(e.Path, '/')+1:]
}

// address is the parsed bdf.
func (e *pciEntry) address() (gpu.PCIAddress, error) {
	return gpu.ParsePCIAddress(e.bdf())
}

// NodeModels lists the node models, sorted.
func NodeModels() []string {
	files, err := modelFiles.ReadDir("models")
	if err != nil {
		return nil // the directory is part of the program
	}
	names := make([]string, 0, len(files))
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".json"))
	}
	slices.Sort(names)
	return names
}

// ModelDescription describes a node model in one line; empty for an unknown one.
func ModelDescription(name string) string {
	m, err := readModel(name)
	if err != nil {
		return ""
	}
	return m.Description
}

func readModel(name string) (*model, error) {
	data, err := modelFiles.ReadFile("models/" + name + ".json")
	if err != nil {
		return nil, fmt.Errorf("no node model named %q: want one of %s", name, strings.Join(NodeModels(), ", "))
	}
	var m model
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("decode node model %s: %w", name, err)
	}
	return &m, nil
}

// newSpec creates a node of a model. The same model and seed give the same identities.
func newSpec(name string, o *options) (*spec, error) {
	m, err := readModel(name)
	if err != nil {
		return nil, err
	}
	board, err := FindBoard(m.Board)
	if err != nil {
		return nil, fmt.Errorf("read node model %s: %w", name, err)
	}
	for _, override := range []struct {
		to   *string
		from string
	}{{&board.Product, m.Product}, {&board.PCIDeviceID, m.PCIDeviceID}, {&board.PCISubsystemID, m.PCISubsystemID}} {
		if override.from != "" {
			*override.to = override.from
		}
	}
	s := &m.spec
	s.Schema = specSchema
	s.Boards = []Board{*board}
	s.DeviceNodes, s.DevRoot = !o.noDeviceNodes, o.devRoot
	s.PassThrough = o.passThrough
	for i := range s.GPUs {
		s.GPUs[i].Minor += o.firstMinor
	}
	if o.driverVersion != "" {
		s.DriverVersion = o.driverVersion
	}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		key := fmt.Sprintf("%s/%s/%d", name, o.seed, i)
		g.UUID = "GPU-" + uuidOf(key)
		g.Serial = fmt.Sprintf("165%010d", hash64(key)%1e10)
		g.Vendor, g.Device, g.Class = "0x10de", board.PCIDeviceID, "0x030200"
	}
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("node model %s: %w", name, err)
	}
	return s, nil
}

// decodeSpec reads a spec that Create wrote.
func decodeSpec(data []byte) (*spec, error) {
	var s spec
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("decode node: %w", err)
	}
	if s.Schema != specSchema {
		return nil, fmt.Errorf("decode node: schema %d, want %d: create the node again", s.Schema, specSchema)
	}
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("decode node: %w", err)
	}
	return &s, nil
}

// validate checks the assumptions of the rest of the package.
func (s *spec) validate() error {
	if len(s.GPUs) == 0 || len(s.GPUs) > maxGPUs {
		return fmt.Errorf("%d GPUs, want 1 to %d", len(s.GPUs), maxGPUs)
	}
	var last gpu.PCIAddress
	for i := range s.GPUs {
		g := &s.GPUs[i]
		a, err := g.address()
		if err != nil {
			return fmt.Errorf("GPU %d: %w", i, err)
		}
		if i > 0 && last.Compare(a) >= 0 {
			return fmt.Errorf("GPU %d at %s is out of PCI order", i, a)
		}
		last = a
		if g.Board < 0 || g.Board >= len(s.Boards) {
			return fmt.Errorf("GPU %d: no board %d", i, g.Board)
		}
		if g.Minor < 0 || g.Minor >= maxGPUs {
			return fmt.Errorf("GPU %d: minor %d", i, g.Minor)
		}
	}
	for i := range s.NVSwitches {
		if _, err := s.NVSwitches[i].address(); err != nil {
			return fmt.Errorf("NVSwitch %d: %w", i, err)
		}
	}
	for _, group := range s.Links.Groups {
		for _, g := range group {
			if g < 0 || g >= len(s.GPUs) {
				return fmt.Errorf("links to GPU %d of %d", g, len(s.GPUs))
			}
		}
	}
	for i := range s.Boards {
		if err := s.Boards[i].validate(); err != nil {
			return err
		}
	}
	return nil
}

// validate checks the assumptions of the rules of partitions.
func (b *Board) validate() error {
	if b.MIG == nil {
		return nil
	}
	for i := range b.MIG.Profiles {
		if err := b.MIG.Profiles[i].validate(b.MIG.Slices); err != nil {
			return fmt.Errorf("board %s: profile %s: %w", b.Name, b.MIG.Profiles[i].Name, err)
		}
	}
	return nil
}

// validate checks a profile of a board with a number of placement units.
func (p *Profile) validate(units int) error {
	if p.ComputeSlices < 1 || p.Size < 1 || len(p.ComputeInstances) == 0 {
		return fmt.Errorf("%d compute slices, size %d, %d compute instance profiles", p.ComputeSlices, p.Size, len(p.ComputeInstances))
	}
	for _, start := range p.Starts {
		if start < 0 || start+p.Size > units || instanceID(units, start, p.Size) >= maxInstances {
			return fmt.Errorf("%d:%d does not lie on a board of %d units", start, p.Size, units)
		}
	}
	for _, c := range p.ComputeInstances {
		for _, start := range c.Starts {
			if c.Slices < 1 || start < 0 || start+c.Slices > min(p.ComputeSlices, maxCompute) {
				return fmt.Errorf("compute instance %d:%d does not lie in %d compute slices", start, c.Slices, p.ComputeSlices)
			}
		}
	}
	return nil
}

// hash64 is a well mixed, stable hash of a string.
func hash64(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // a hash never fails
	return mix(h.Sum64())
}

// mix spreads the bits of x (the finalizer of splitmix64), because FNV gives similar strings similar hashes.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// uuidOf is a UUID of version 5 form, derived from a string.
func uuidOf(key string) string {
	var u [16]byte
	hi := hash64(key)
	binary.BigEndian.PutUint64(u[:8], hi)
	binary.BigEndian.PutUint64(u[8:], mix(hi+hash64("uuid/"+key)))
	u[6] = u[6]&0x0f | 0x50
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
