// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
)

const callInit = "nvmlInit_v2"

// Calls counts the calls of NVML functions through a Node, failed calls included.
type Calls struct {
	counts map[string]*atomic.Int64     // by name of the call; the map itself never changes
	trace  func(call string, index int) // nil: no trace
}

func newCalls(trace io.Writer) *Calls {
	c := &Calls{counts: make(map[string]*atomic.Int64, len(callNames))}
	for _, name := range callNames {
		c.counts[name] = new(atomic.Int64)
	}
	if trace != nil {
		c.trace = func(call string, index int) { _, _ = fmt.Fprintf(trace, "%s %d\n", call, index) } // one write per line
	}
	return c
}

// begin counts a call on the GPU with an index, or on none (-1).
func (c *Calls) begin(call string, index int) {
	if n := c.counts[call]; n != nil {
		n.Add(1)
	}
	if c.trace != nil {
		c.trace(call, index)
	}
}

// Of reports how often a function was called.
func (c *Calls) Of(function string) int64 {
	if n := c.counts[function]; n != nil {
		return n.Load()
	}
	return 0
}

// Total is the number of all calls.
func (c *Calls) Total() int64 {
	var total int64
	for _, n := range c.counts {
		total += n.Load()
	}
	return total
}

// Reset sets the counts to zero.
func (c *Calls) Reset() {
	for _, n := range c.counts {
		n.Store(0)
	}
}

// Calls that NVML does not have: names for faults of the MPS programs and of GPU resets.
const (
	CallReset             = "gpuReset"
	CallMPSControlStart   = "mpsControlStart"
	CallMPSControlCommand = "mpsControlCommand"
	CallMPSServerStart    = "mpsServerStart"
)

// callNames are the simulated NVML functions and the other names for faults, sorted. All other functions answer NOT_SUPPORTED.
var callNames = []string{
	CallReset,
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
	"nvmlDeviceGetProcessUtilization",
	"nvmlDeviceGetRemappedRows",
	"nvmlDeviceGetSerial",
	"nvmlDeviceGetSupportedEventTypes",
	"nvmlDeviceGetTemperature",
	"nvmlDeviceGetTemperatureThreshold",
	"nvmlDeviceGetTopologyCommonAncestor",
	"nvmlDeviceGetTopologyNearestGpus",
	"nvmlDeviceGetTotalEccErrors",
	"nvmlDeviceGetTotalEnergyConsumption",
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
	"nvmlSystemGetConfComputeGpusReadyState",
	"nvmlSystemGetConfComputeSettings",
	"nvmlSystemGetConfComputeState",
	"nvmlSystemGetCudaDriverVersion_v2",
	"nvmlSystemGetDriverVersion",
	"nvmlSystemGetNVMLVersion",
	"nvmlSystemGetProcessName",
}

// CallNames lists the simulated NVML functions, sorted: those that faults may name and Calls counts.
func CallNames() []string { return slices.Clone(callNames) }

// ResolveCall finds a simulated function by its name, with or without the prefix "nvml" and the version suffix. "*" means all.
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
