//go:build nvmlsim

// Clocks, PCIe links, thresholds, names of processes and GPM, with the true prototypes of nvml.h.

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <stddef.h>
#include <stdlib.h>

#include <nvml.h>

#include "_cgo_export.h"
#include "sim.h"

#define number(name, which) \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *to) { return simDeviceNumber(which, device, to); }

number(nvmlDeviceGetCurrPcieLinkGeneration, SIM_PCIE_GENERATION)
number(nvmlDeviceGetMaxPcieLinkGeneration, SIM_PCIE_MAX_GENERATION)
number(nvmlDeviceGetGpuMaxPcieLinkGeneration, SIM_PCIE_MAX_GENERATION)
number(nvmlDeviceGetCurrPcieLinkWidth, SIM_PCIE_WIDTH)
number(nvmlDeviceGetMaxPcieLinkWidth, SIM_PCIE_MAX_WIDTH)

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    return simDeviceGetClock(device, type, 0, clock);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    return simDeviceGetClock(device, type, 1, clock);
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length)
{
    return simDeviceGetVbiosVersion(device, version, length);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t type, unsigned int *temperature)
{
    return simDeviceGetTemperatureThreshold(device, type, temperature);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *least, unsigned int *most)
{
    return simDeviceGetPowerLimits(device, least, most);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    return simSystemGetProcessName(pid, name, length);
}

// GPM: a sample is how busy a GPU was, and the value of a metric is that of the later sample.

struct nvmlGpmSample_st {
    unsigned int busy;
};

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    if (support == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (support->version != NVML_GPM_SUPPORT_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return simGpmSupported(device, &support->isSupportedDevice);
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    if (sample == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    sample->handle = calloc(1, sizeof(*sample->handle));
    return sample->handle == NULL ? NVML_ERROR_MEMORY : NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    free(sample.handle);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    return sample.handle == NULL ? NVML_ERROR_INVALID_ARGUMENT : simGpmSample(device, -1, &sample.handle->busy);
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpuInstance, nvmlGpmSample_t sample)
{
    return sample.handle == NULL ? NVML_ERROR_INVALID_ARGUMENT : simGpmSample(device, (int)gpuInstance, &sample.handle->busy);
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *metrics)
{
    if (metrics == NULL || metrics->sample1.handle == NULL || metrics->sample2.handle == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (metrics->version != NVML_GPM_METRICS_GET_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (metrics->numMetrics > sizeof(metrics->metrics) / sizeof(metrics->metrics[0]))
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < metrics->numMetrics; i++) {
        int simulated = metrics->metrics[i].metricId >= NVML_GPM_METRIC_GRAPHICS_UTIL
                        && metrics->metrics[i].metricId <= NVML_GPM_METRIC_SM_OCCUPANCY;
        metrics->metrics[i].nvmlReturn = simulated ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        metrics->metrics[i].value = simulated ? metrics->sample2.handle->busy : 0;
    }
    return NVML_SUCCESS;
}
