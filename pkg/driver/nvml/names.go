// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

var brands = map[int]string{
	int(nvml.BRAND_QUADRO): "Quadro", int(nvml.BRAND_TESLA): "Tesla", int(nvml.BRAND_NVS): "NVS",
	int(nvml.BRAND_GRID): "Grid", int(nvml.BRAND_GEFORCE): "GeForce", int(nvml.BRAND_TITAN): "Titan",
	int(nvml.BRAND_NVIDIA_VAPPS): "NvidiaVApps", int(nvml.BRAND_NVIDIA_VPC): "NvidiaVPC",
	int(nvml.BRAND_NVIDIA_VCS): "NvidiaVCS", int(nvml.BRAND_NVIDIA_VWS): "NvidiaVWS",
	int(nvml.BRAND_NVIDIA_CLOUD_GAMING): "NvidiaCloudGaming", int(nvml.BRAND_QUADRO_RTX): "QuadroRTX",
	int(nvml.BRAND_NVIDIA_RTX): "NvidiaRTX", int(nvml.BRAND_NVIDIA): "Nvidia",
	int(nvml.BRAND_GEFORCE_RTX): "GeForceRTX", int(nvml.BRAND_TITAN_RTX): "TitanRTX",
}

var architectures = map[int]string{
	nvml.DEVICE_ARCH_KEPLER: "Kepler", nvml.DEVICE_ARCH_MAXWELL: "Maxwell", nvml.DEVICE_ARCH_PASCAL: "Pascal",
	nvml.DEVICE_ARCH_VOLTA: "Volta", nvml.DEVICE_ARCH_TURING: "Turing", nvml.DEVICE_ARCH_AMPERE: "Ampere",
	nvml.DEVICE_ARCH_ADA: "Ada Lovelace", nvml.DEVICE_ARCH_HOPPER: "Hopper", nvml.DEVICE_ARCH_BLACKWELL: "Blackwell",
	nvml.DEVICE_ARCH_RUBIN: "Rubin",
}

var addressingModes = map[int]string{
	int(nvml.DEVICE_ADDRESSING_MODE_NONE): "None", int(nvml.DEVICE_ADDRESSING_MODE_HMM): "HMM",
	int(nvml.DEVICE_ADDRESSING_MODE_ATS): "ATS",
}

// nvlinkVersions by NVML_NVLINK_VERSION_*, which is not the version number.
var nvlinkVersions = map[int]gpu.Version{
	int(nvml.NVLINK_VERSION_1_0): {Major: 1}, int(nvml.NVLINK_VERSION_2_0): {Major: 2}, int(nvml.NVLINK_VERSION_2_2): {Major: 2, Minor: 2},
	int(nvml.NVLINK_VERSION_3_0): {Major: 3}, int(nvml.NVLINK_VERSION_3_1): {Major: 3, Minor: 1}, int(nvml.NVLINK_VERSION_4_0): {Major: 4},
	int(nvml.NVLINK_VERSION_5_0): {Major: 5}, int(nvml.NVLINK_VERSION_6_0): {Major: 6},
}

// migProfiles implements NVIDIA's naming rule for profiles. It opens no session.
var migProfiles = device.New(nvml.New())

// profileName is NVIDIA's name of a profile, such as "1g.10gb+me", derived from the profile and the board's total memory.
// It is empty for profiles that go-nvlib does not know: go-nvlib panics on NVML_GPU_INSTANCE_PROFILE_3_SLICE_GFX.
func profileName(p gpu.Profile, totalMemory uint64) string {
	ci, ok := wholeInstance[p.ComputeSlices]
	if !ok || totalMemory == 0 {
		return ""
	}
	name, err := migProfiles.NewMigProfile(p.Enum, ci, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, p.Memory>>20, totalMemory)
	if err != nil {
		return ""
	}
	return name.String()
}

// wholeInstance maps compute slices to the compute instance profile that fills such a GPU instance.
var wholeInstance = map[int]int{
	1: nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 2: nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE,
	3: nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE, 4: nvml.COMPUTE_INSTANCE_PROFILE_4_SLICE,
	6: nvml.COMPUTE_INSTANCE_PROFILE_6_SLICE, 7: nvml.COMPUTE_INSTANCE_PROFILE_7_SLICE,
	8: nvml.COMPUTE_INSTANCE_PROFILE_8_SLICE,
}

// computeEnums are all compute instance profiles, smallest first.
var computeEnums = []int{
	nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE,
	nvml.COMPUTE_INSTANCE_PROFILE_4_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_6_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_7_SLICE,
	nvml.COMPUTE_INSTANCE_PROFILE_8_SLICE, nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1,
	nvml.COMPUTE_INSTANCE_PROFILE_7_SLICE_NVL,
}
