//go:build nvmlsim

// The functions of nvml.h that Go cannot declare as they are: those with const in their prototypes, and GPM, whose
// samples are structs of the library's own.

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <stddef.h>
#include <stdlib.h>

#include <nvml.h>

#include "_cgo_export.h"

const char *nvmlErrorString(nvmlReturn_t result) { return simErrorString(result); }

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

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profileId,
                                                      const nvmlGpuInstancePlacement_t *placement, nvmlGpuInstance_t *instance)
{
    if (placement == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return simDeviceCreateGpuInstance(device, profileId, (nvmlGpuInstancePlacement_t *)placement, instance);
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance, unsigned int profileId,
                                                               const nvmlComputeInstancePlacement_t *placement,
                                                               nvmlComputeInstance_t *compute)
{
    if (placement == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return simGpuInstanceCreateComputeInstance(instance, profileId, (nvmlComputeInstancePlacement_t *)placement, compute);
}

// GPM: a sample is counters at a time, and the value of a metric is what two samples differ by.

struct nvmlGpmSample_st {
    long long at;
    double sm, dram;
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
    return sample.handle == NULL ? NVML_ERROR_INVALID_ARGUMENT : simGpmSample(device, -1, &sample.handle->at, &sample.handle->sm, &sample.handle->dram);
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpuInstance, nvmlGpmSample_t sample)
{
    if (sample.handle == NULL || gpuInstance > 0xFFFF)
        return NVML_ERROR_INVALID_ARGUMENT;
    return simGpmSample(device, (int)gpuInstance, &sample.handle->at, &sample.handle->sm, &sample.handle->dram);
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *metrics)
{
    if (metrics == NULL || metrics->sample1.handle == NULL || metrics->sample2.handle == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (metrics->version != NVML_GPM_METRICS_GET_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (metrics->numMetrics > sizeof(metrics->metrics) / sizeof(metrics->metrics[0]))
        return NVML_ERROR_INVALID_ARGUMENT;
    double sm = 0, dram = 0;
    struct nvmlGpmSample_st *from = metrics->sample1.handle, *to = metrics->sample2.handle;
    int known = simGpmSince(from->at, to->at, from->sm, from->dram, to->sm, to->dram, &sm, &dram);
    for (unsigned int i = 0; i < metrics->numMetrics; i++) {
        unsigned int id = metrics->metrics[i].metricId;
        int isSM = id >= NVML_GPM_METRIC_GRAPHICS_UTIL && id <= NVML_GPM_METRIC_SM_OCCUPANCY;
        metrics->metrics[i].value = isSM ? sm : dram;
        if (!isSM && id != NVML_GPM_METRIC_DRAM_BW_UTIL)
            metrics->metrics[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        else
            metrics->metrics[i].nvmlReturn = known ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
    }
    return NVML_SUCCESS;
}
