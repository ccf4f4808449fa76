// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

//go:embed boards/*.json
var boardFiles embed.FS

// Board is a GPU product: its NVML attributes and possible partitions.
type Board struct {
	// Name in node models, such as "H100-80".
	Name string `json:"name"`
	// Product is the name from nvmlDeviceGetName.
	Product string `json:"product"`
	// PCIDeviceID is the 16-bit device id, "0x2330"; the vendor is 0x10de.
	PCIDeviceID string `json:"pciDeviceID"`
	// PCISubsystemID is the 32-bit subsystem id, "0x16c110de".
	PCISubsystemID string `json:"pciSubsystemID"`
	// Brand is one of NVML_BRAND_*.
	Brand int `json:"brand"`
	// Architecture is one of NVML_DEVICE_ARCH_*.
	Architecture int `json:"architecture"`
	// ComputeCapability is major and minor.
	ComputeCapability [2]int `json:"computeCapability"`
	// MemoryMiB is the total of nvmlDeviceGetMemoryInfo; ReservedMiB the reserved part of its v2.
	MemoryMiB   uint64 `json:"memoryMiB"`
	ReservedMiB uint64 `json:"reservedMiB"`
	BAR1MiB     uint64 `json:"bar1MiB"`
	// Multiprocessors of the whole GPU.
	Multiprocessors int `json:"multiprocessors"`
	PowerLimitWatts int `json:"powerLimitWatts"`
	// GraphicsMHz and MemoryMHz are the maximum clocks; PCIeGeneration is the maximum of its slot of 16 lanes.
	GraphicsMHz    int    `json:"graphicsMHz"`
	MemoryMHz      int    `json:"memoryMHz"`
	PCIeGeneration int    `json:"pcieGeneration"`
	VBIOS          string `json:"vbios"`
	// AddressingMode is one of NVML_DEVICE_ADDRESSING_MODE_*: 0 none, 1 HMM, 2 ATS.
	AddressingMode int `json:"addressingMode"`
	// ECC reports whether the board has ECC memory, which is then on.
	ECC bool `json:"ecc"`
	// GSPFirmware is the firmware file the driver installs for it.
	GSPFirmware string `json:"gspFirmware"`
	// NVLink is nil on boards without.
	NVLink *NVLink `json:"nvlink,omitempty"`
	// MIG is nil on boards that cannot be partitioned, or whose geometry was not captured.
	MIG *Geometry `json:"mig,omitempty"`
}

// NVLink is the NVLink hardware of a board.
type NVLink struct {
	Links int `json:"links"`
	// Version is one of NVML_NVLINK_VERSION_*: 5 is 3.1, 6 is 4.0, 7 is 5.0.
	Version int `json:"version"`
	// MegabytesPerSecond of one link in one direction (NVML_FI_DEV_NVLINK_GET_SPEED).
	MegabytesPerSecond uint64 `json:"megabytesPerSecond"`
}

// Geometry is how a board can be partitioned.
type Geometry struct {
	// Slices is the number of placement units: 4, 8 or 12.
	Slices int `json:"slices"`
	// ModeNeedsReset means that a change of MIG mode needs a reset of the GPU, and that the mode survives reboots.
	ModeNeedsReset bool `json:"modeNeedsReset"`
	// Estimated names the profiles whose memory, multiprocessors and engines were not captured.
	Estimated []string `json:"estimated,omitempty"`
	// Profiles in ascending order of enum within a size, as the data file has them.
	Profiles []Profile `json:"profiles"`
}

// Profile is a kind of GPU instance (nvmlGpuInstanceProfileInfo_t).
type Profile struct {
	Name string `json:"name"`
	// Enum is NVML_GPU_INSTANCE_PROFILE_*, ID the profile ID; they are different numbers.
	Enum int `json:"enum"`
	ID   int `json:"id"`
	// ComputeSlices as in the "1g" of the name.
	ComputeSlices int `json:"computeSlices"`
	// Size in placement units, and where an instance may start.
	Size   int   `json:"size"`
	Starts []int `json:"starts"`
	// MaxInstances is the driver's value; placements and engines may allow fewer together with other profiles.
	MaxInstances    int    `json:"maxInstances"`
	MemoryMiB       uint64 `json:"memoryMiB"`
	Multiprocessors int    `json:"multiprocessors"`
	CopyEngines     int    `json:"copyEngines"`
	Decoders        int    `json:"decoders"`
	Encoders        int    `json:"encoders"`
	JPEGEngines     int    `json:"jpegEngines"`
	OFAEngines      int    `json:"ofaEngines"`
	// Graphics means that graphics APIs work in it ("+gfx").
	Graphics bool `json:"graphics,omitempty"`
	// ComputeInstances in ascending order of enum.
	ComputeInstances []ComputeProfile `json:"computeInstances"`
}

// ComputeProfile is a kind of compute instance (nvmlComputeInstanceProfileInfo_t).
type ComputeProfile struct {
	// Enum is NVML_COMPUTE_INSTANCE_PROFILE_*.
	Enum int `json:"enum"`
	ID   int `json:"id"`
	// Slices is its number of compute slices; Starts are the compute slices at which it may start.
	Slices int   `json:"slices"`
	Starts []int `json:"starts"`
}

// Boards lists every board, by name.
func Boards() ([]Board, error) {
	files, err := boardFiles.ReadDir("boards")
	if err != nil {
		return nil, fmt.Errorf("list boards: %w", err)
	}
	boards := make([]Board, 0, len(files))
	for _, f := range files {
		b, err := readBoard(f.Name())
		if err != nil {
			return nil, err
		}
		boards = append(boards, *b)
	}
	slices.SortFunc(boards, func(a, b Board) int { return strings.Compare(a.Name, b.Name) })
	return boards, nil
}

// FindBoard returns the board of that name.
func FindBoard(name string) (*Board, error) {
	b, err := readBoard(strings.ToLower(name) + ".json")
	if err != nil || b.Name != name {
		return nil, fmt.Errorf("no board named %q", name)
	}
	return b, nil
}

func readBoard(file string) (*Board, error) {
	data, err := boardFiles.ReadFile("boards/" + file)
	if err != nil {
		return nil, fmt.Errorf("read board: %w", err)
	}
	var b Board
	if err := json.Unmarshal(data, &b); err != nil {
		return nil, fmt.Errorf("decode board %s: %w", file, err)
	}
	return &b, nil
}

// profileByEnum returns the profile of an NVML enum, or nil.
func (b *Board) profileByEnum(enum int) *Profile {
	return b.findProfile(func(p *Profile) bool { return p.Enum == enum })
}

// profileByID returns the profile of a profile ID, or nil.
func (b *Board) profileByID(id int) *Profile {
	return b.findProfile(func(p *Profile) bool { return p.ID == id })
}

func (b *Board) findProfile(match func(*Profile) bool) *Profile {
	if b.MIG == nil {
		return nil
	}
	for i := range b.MIG.Profiles {
		if match(&b.MIG.Profiles[i]) {
			return &b.MIG.Profiles[i]
		}
	}
	return nil
}

// Info converts the profile to pkg/domain/gpu. Name and Placements are empty, as NVML returns them elsewhere.
func (p *Profile) Info() gpu.Profile {
	return gpu.Profile{
		ID:              p.ID,
		Enum:            p.Enum,
		MaxInstances:    p.MaxInstances,
		ComputeSlices:   p.ComputeSlices,
		Memory:          p.MemoryMiB << 20,
		Multiprocessors: p.Multiprocessors,
		CopyEngines:     p.CopyEngines,
		Decoders:        p.Decoders,
		Encoders:        p.Encoders,
		JPEGEngines:     p.JPEGEngines,
		OFAEngines:      p.OFAEngines,
	}
}

// Placements lists the possible placements of an instance, in ascending start.
func (p *Profile) Placements() []gpu.Placement {
	placements := make([]gpu.Placement, len(p.Starts))
	for i, s := range p.Starts {
		placements[i] = gpu.Placement{Start: s, Size: p.Size}
	}
	return placements
}

// Filling is the compute instance profile that fills a GPU instance. Every profile of the boards has one.
func (p *Profile) Filling() *ComputeProfile {
	i := slices.IndexFunc(p.ComputeInstances, func(c ComputeProfile) bool { return c.Slices == p.ComputeSlices })
	return &p.ComputeInstances[i]
}

// computeByEnum returns the compute instance profile of an NVML enum, or nil.
func (p *Profile) computeByEnum(enum int) *ComputeProfile {
	for i := range p.ComputeInstances {
		if p.ComputeInstances[i].Enum == enum {
			return &p.ComputeInstances[i]
		}
	}
	return nil
}

// computeByID returns the compute instance profile of a profile ID, or nil.
func (p *Profile) computeByID(id int) *ComputeProfile {
	for i := range p.ComputeInstances {
		if p.ComputeInstances[i].ID == id {
			return &p.ComputeInstances[i]
		}
	}
	return nil
}

// multiprocessors is the share of the GPU instance's multiprocessors that a compute instance gets.
func (c *ComputeProfile) multiprocessors(p *Profile) int {
	return p.Multiprocessors * c.Slices / p.ComputeSlices
}
