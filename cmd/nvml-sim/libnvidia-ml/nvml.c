//go:build nvmlsim

// The functions of nvml.h that are simulated, with their true prototypes. Each hands over to Go.

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <stddef.h>
#include <string.h>

#include <nvml.h>

#include "_cgo_export.h"
#include "sim.h"

// number defines a function that stores one unsigned number about a GPU.
#define number(name, which, type) \
    nvmlReturn_t name(nvmlDevice_t device, type *to) { return simDeviceNumber(which, device, (unsigned int *)to); }

// Sessions and the system.

nvmlReturn_t nvmlInit_v2(void) { return simInit(); }
nvmlReturn_t nvmlInit(void) { return simInit(); }
nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { (void)flags; return simInit(); }
nvmlReturn_t nvmlShutdown(void) { return simShutdown(); }
const char *nvmlErrorString(nvmlReturn_t result) { return simErrorString(result); }

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    return simSystemString(SIM_DRIVER_VERSION, version, length);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    return simSystemString(SIM_NVML_VERSION, version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return simSystemGetCudaDriverVersion(version); }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { return simSystemGetCudaDriverVersion(version); }

// Finding GPUs.

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) { return simDeviceGetCount(count); }
nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) { return simDeviceGetCount(count); }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    return simDeviceGetHandleByIndex(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return simDeviceGetHandleByIndex(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return uuid == NULL ? NVML_ERROR_INVALID_ARGUMENT : simDeviceGetHandleByUUID((char *)uuid, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
    if (uuid == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (uuid->type != NVML_UUID_TYPE_ASCII)
        return NVML_ERROR_NOT_SUPPORTED;
    return simDeviceGetHandleByUUID((char *)uuid->value.str, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
    return id == NULL ? NVML_ERROR_INVALID_ARGUMENT : simDeviceGetHandleByPciBusId((char *)id, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

// What a GPU is.

number(nvmlDeviceGetMinorNumber, SIM_MINOR, unsigned int)
number(nvmlDeviceGetModuleId, SIM_MODULE, unsigned int)
number(nvmlDeviceGetBrand, SIM_BRAND, nvmlBrandType_t)
number(nvmlDeviceGetArchitecture, SIM_ARCHITECTURE, nvmlDeviceArchitecture_t)
number(nvmlDeviceGetNumaNodeId, SIM_NUMA_NODE, unsigned int)
number(nvmlDeviceGetVirtualizationMode, SIM_VIRTUALIZATION, nvmlGpuVirtualizationMode_t)
number(nvmlDeviceGetPowerUsage, SIM_POWER, unsigned int)
number(nvmlDeviceGetPowerManagementLimit, SIM_POWER_LIMIT, unsigned int)
number(nvmlDeviceGetEnforcedPowerLimit, SIM_POWER_LIMIT, unsigned int)
number(nvmlDeviceGetPowerManagementDefaultLimit, SIM_POWER_LIMIT, unsigned int)
number(nvmlDeviceGetMaxMigDeviceCount, SIM_MAX_MIG_DEVICES, unsigned int)
number(nvmlDeviceGetPersistenceMode, SIM_PERSISTENCE_MODE, nvmlEnableState_t)

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *to)
{
    return sensor == NVML_TEMPERATURE_GPU ? simDeviceNumber(SIM_TEMPERATURE, device, to) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *to)
{
    if (to == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return simDeviceNumber(SIM_TEMPERATURE, device, (unsigned int *)&to->temperature);
}

nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *to)
{
    if (to == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (to->version != nvmlDeviceAddressingMode_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return simDeviceNumber(SIM_ADDRESSING_MODE, device, &to->value);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) { return simDeviceGetIndex(device, index); }

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    return simDeviceGetName(device, name, length);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    return simDeviceGetUUID(device, uuid, length);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
    return simDeviceGetSerial(device, serial, length);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return simDeviceGetPciInfo(device, pci);
}

// The older structs are the beginning of the present one.
static nvmlReturn_t shortPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci, size_t size)
{
    nvmlPciInfo_t full;
    if (pci == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t ret = simDeviceGetPciInfo(device, &full);
    if (ret == NVML_SUCCESS)
        memcpy(pci, &full, size);
    return ret;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return shortPciInfo(device, pci, offsetof(nvmlPciInfo_t, busId));
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return shortPciInfo(device, pci, offsetof(nvmlPciInfo_t, pciSubSystemId));
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    return simDeviceGetCudaComputeCapability(device, major, minor);
}

// Memory and modes.

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    return simDeviceGetMemoryInfo(device, memory);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    if (memory == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return simDeviceGetMemoryInfoV2(device, memory);
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    return simDeviceGetBAR1MemoryInfo(device, memory);
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
    return simDeviceGetEccMode(device, current, pending);
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter,
                                         unsigned long long *count)
{
    (void)error;
    (void)counter;
    return simDeviceGetTotalEccErrors(device, count);
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
                                       unsigned int *pending, unsigned int *failed)
{
    return simDeviceGetRemappedRows(device, corrected, uncorrected, pending, failed);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    return simDeviceGetUtilizationRates(device, rates);
}

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
    if (limits == NULL || limits->nameSpace == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return simDeviceSetMemoryLimits(device, (char *)limits->nameSpace, limits->softLimit, limits->hardLimit);
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
    if (limits == NULL || limits->nameSpace == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return simDeviceGetMemoryLimits(device, limits);
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
    return simDeviceGetComputeMode(device, (unsigned int *)mode);
}

nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
    return simDeviceSetComputeMode(device, mode);
}

nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    return simDeviceSetPersistenceMode(device, mode);
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    return simDeviceGetFieldValues(device, count, values);
}

// Processes. All are compute processes.

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    return simDeviceGetProcesses(device, count, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)
{
    return simDeviceGetProcesses(device, count, infos);
}

static nvmlReturn_t noProcesses(unsigned int *count)
{
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    (void)device;
    (void)infos;
    return noProcesses(count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    (void)device;
    (void)infos;
    return noProcesses(count);
}

// Topology and links.

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int size, unsigned long *set, nvmlAffinityScope_t scope)
{
    (void)scope;
    return simDeviceGetMemoryAffinity(device, size, set);
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int size, unsigned long *set,
                                                 nvmlAffinityScope_t scope)
{
    (void)scope;
    return simDeviceGetCpuAffinity(device, size, set);
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int size, unsigned long *set)
{
    return simDeviceGetCpuAffinity(device, size, set);
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuTopologyLevel_t *level)
{
    return simDeviceGetTopologyCommonAncestor(a, b, (unsigned int *)level);
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level, unsigned int *count,
                                              nvmlDevice_t *near)
{
    return simDeviceGetTopologyNearestGpus(device, level, count, near);
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuP2PCapsIndex_t index, nvmlGpuP2PStatus_t *status)
{
    return simDeviceGetP2PStatus(a, b, index, (unsigned int *)status);
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *active)
{
    return simDeviceGetNvLinkState(device, link, active);
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
    return simDeviceGetNvLinkVersion(device, link, version);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, nvmlIntNvLinkDeviceType_t *type)
{
    return simDeviceGetNvLinkRemoteDeviceType(device, link, (unsigned int *)type);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    return simDeviceGetNvLinkRemotePciInfo(device, link, pci);
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    info->status = NVML_SUCCESS;
    info->state = NVML_GPU_FABRIC_STATE_COMPLETED;
    return simDeviceGetGpuFabricInfo(device, info->clusterUuid, &info->cliqueId, &info->state);
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info)
{
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != nvmlGpuFabricInfo_v2 && info->version != nvmlGpuFabricInfo_v3)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    info->status = NVML_SUCCESS;
    info->state = NVML_GPU_FABRIC_STATE_COMPLETED;
    info->healthMask = 0;
    if (info->version == nvmlGpuFabricInfo_v3)
        info->healthSummary = NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY;
    return simDeviceGetGpuFabricInfo(device, info->clusterUuid, &info->cliqueId, &info->state);
}

// Events.

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    return set == NULL ? NVML_ERROR_INVALID_ARGUMENT : simEventSetCreate(set);
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) { return simEventSetFree(set); }

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int milliseconds)
{
    return simEventSetWait(set, data, milliseconds);
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int milliseconds)
{
    return simEventSetWait(set, data, milliseconds);
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    return simDeviceRegisterEvents(device, types, set);
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    return simDeviceGetSupportedEventTypes(device, types);
}
