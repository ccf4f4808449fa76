// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"
)

const callInit = "nvmlInit_v2"

// Calls that NVML does not have: what a fault of the MPS programs is named by.
const (
	CallMPSControlStart   = "mpsControlStart"
	CallMPSControlCommand = "mpsControlCommand"
	CallMPSServerStart    = "mpsServerStart"
)

// callNames are the NVML functions that are simulated, and what else faults may name, sorted. All other functions
// answer NOT_SUPPORTED.
var callNames = []string{
	CallMPSControlCommand,
	CallMPSControlStart,
	CallMPSServerStart,
	"nvmlComputeInstanceDestroy",
	"nvmlComputeInstanceGetInfo_v2",
	"nvmlDeviceCreateGpuInstance",
	"nvmlDeviceCreateGpuInstanceWithPlacement",
	"nvmlDeviceGetAddressingMode",
	"nvmlDeviceGetArchitecture",
	"nvmlDeviceGetAttributes_v2",
	"nvmlDeviceGetBAR1MemoryInfo",
	"nvmlDeviceGetBrand",
	"nvmlDeviceGetClockInfo",
	"nvmlDeviceGetComputeInstanceId",
	"nvmlDeviceGetComputeMode",
	"nvmlDeviceGetComputeRunningProcesses_v3",
	"nvmlDeviceGetCount_v2",
	"nvmlDeviceGetCpuAffinity",
	"nvmlDeviceGetCudaComputeCapability",
	"nvmlDeviceGetCurrPcieLinkGeneration",
	"nvmlDeviceGetCurrPcieLinkWidth",
	"nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
	"nvmlDeviceGetEccMode",
	"nvmlDeviceGetFieldValues",
	"nvmlDeviceGetGpuFabricInfoV",
	"nvmlDeviceGetGpuInstanceById",
	"nvmlDeviceGetGpuInstanceId",
	"nvmlDeviceGetGpuInstancePossiblePlacements_v2",
	"nvmlDeviceGetGpuInstanceProfileInfo",
	"nvmlDeviceGetGpuInstanceProfileInfoByIdV",
	"nvmlDeviceGetGpuInstanceProfileInfoV",
	"nvmlDeviceGetGpuInstanceRemainingCapacity",
	"nvmlDeviceGetGpuInstances",
	"nvmlDeviceGetHandleByIndex_v2",
	"nvmlDeviceGetHandleByPciBusId_v2",
	"nvmlDeviceGetHandleByUUID",
	"nvmlDeviceGetIndex",
	"nvmlDeviceGetMaxClockInfo",
	"nvmlDeviceGetMaxMigDeviceCount",
	"nvmlDeviceGetMaxPcieLinkGeneration",
	"nvmlDeviceGetMaxPcieLinkWidth",
	"nvmlDeviceGetMemoryAffinity",
	"nvmlDeviceGetMemoryInfo",
	"nvmlDeviceGetMemoryInfo_v2",
	"nvmlDeviceGetMemoryLimits_v1",
	"nvmlDeviceGetMigDeviceHandleByIndex",
	"nvmlDeviceGetMigMode",
	"nvmlDeviceGetMinorNumber",
	"nvmlDeviceGetModuleId",
	"nvmlDeviceGetName",
	"nvmlDeviceGetNumaNodeId",
	"nvmlDeviceGetNvLinkRemoteDeviceType",
	"nvmlDeviceGetNvLinkRemotePciInfo_v2",
	"nvmlDeviceGetNvLinkState",
	"nvmlDeviceGetNvLinkVersion",
	"nvmlDeviceGetP2PStatus",
	"nvmlDeviceGetPciInfo_v3",
	"nvmlDeviceGetPersistenceMode",
	"nvmlDeviceGetPowerManagementLimit",
	"nvmlDeviceGetPowerManagementLimitConstraints",
	"nvmlDeviceGetPowerUsage",
	"nvmlDeviceGetRemappedRows",
	"nvmlDeviceGetSerial",
	"nvmlDeviceGetSupportedEventTypes",
	"nvmlDeviceGetTemperature",
	"nvmlDeviceGetTemperatureThreshold",
	"nvmlDeviceGetTopologyCommonAncestor",
	"nvmlDeviceGetTopologyNearestGpus",
	"nvmlDeviceGetTotalEccErrors",
	"nvmlDeviceGetUUID",
	"nvmlDeviceGetUtilizationRates",
	"nvmlDeviceGetVbiosVersion",
	"nvmlDeviceGetVirtualizationMode",
	"nvmlDeviceIsMigDeviceHandle",
	"nvmlDeviceRegisterEvents",
	"nvmlDeviceSetComputeMode",
	"nvmlDeviceSetMemoryLimits_v1",
	"nvmlDeviceSetMigMode",
	"nvmlDeviceSetPersistenceMode",
	"nvmlEventSetCreate",
	"nvmlEventSetFree",
	"nvmlEventSetWait_v2",
	"nvmlGpmMigSampleGet",
	"nvmlGpmQueryDeviceSupport",
	"nvmlGpmSampleGet",
	"nvmlGpuInstanceCreateComputeInstance",
	"nvmlGpuInstanceCreateComputeInstanceWithPlacement",
	"nvmlGpuInstanceDestroy",
	"nvmlGpuInstanceGetComputeInstanceById",
	"nvmlGpuInstanceGetComputeInstancePossiblePlacements",
	"nvmlGpuInstanceGetComputeInstanceProfileInfo",
	"nvmlGpuInstanceGetComputeInstanceRemainingCapacity",
	"nvmlGpuInstanceGetComputeInstances",
	"nvmlGpuInstanceGetInfo",
	"nvmlInit_v2",
	"nvmlShutdown",
	"nvmlSystemGetCudaDriverVersion_v2",
	"nvmlSystemGetDriverVersion",
	"nvmlSystemGetNVMLVersion",
	"nvmlSystemGetProcessName",
}

// CallNames lists the NVML functions that are simulated, sorted: those that faults may name and Calls counts.
func CallNames() []string { return slices.Clone(callNames) }

// ResolveCall finds the simulated function that a name means: with or without "nvml" in front and version behind.
// "*" means all.
func ResolveCall(name string) (string, error) {
	if _, ok := slices.BinarySearch(callNames, name); ok || name == "*" {
		return name, nil
	}
	full := name
	if !strings.HasPrefix(full, "nvml") {
		full = "nvml" + full
	}
	for _, suffix := range []string{"", "_v1", "_v2", "_v3"} {
		if _, ok := slices.BinarySearch(callNames, full+suffix); ok {
			return full + suffix, nil
		}
	}
	var near []string
	for _, c := range callNames {
		if strings.Contains(strings.ToLower(c), strings.ToLower(strings.TrimPrefix(name, "nvml"))) {
			near = append(near, c)
		}
	}
	if len(near) == 0 {
		near = callNames
	}
	return "", fmt.Errorf("no simulated NVML function %q: want * or one of %s", name, strings.Join(near, ", "))
}
