//go:build nvmlsim

// The MIG functions of nvml.h, with their true prototypes. Each hands over to Go.

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <stddef.h>
#include <string.h>

#include <nvml.h>

#include "_cgo_export.h"
#include "sim.h"

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    return simDeviceGetMigMode(device, current, pending);
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation)
{
    return simDeviceSetMigMode(device, mode, activation);
}

// GPU instance profiles.

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile, nvmlGpuInstanceProfileInfo_t *info)
{
    return simDeviceGetGpuInstanceProfileInfo(device, profile, info);
}

static nvmlReturn_t profileInfoV(nvmlDevice_t device, unsigned int key, int byId, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    nvmlGpuInstanceProfileInfo_t common;
    char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
    unsigned int capabilities;

    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != nvmlGpuInstanceProfileInfo_v2 && info->version != nvmlGpuInstanceProfileInfo_v3)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t ret = simDeviceGetGpuInstanceProfileInfoV(device, key, byId, &common, name, &capabilities);
    if (ret != NVML_SUCCESS)
        return ret;

#define fill(to)                                              \
    do {                                                      \
        (to)->id = common.id;                                 \
        (to)->sliceCount = common.sliceCount;                 \
        (to)->instanceCount = common.instanceCount;           \
        (to)->multiprocessorCount = common.multiprocessorCount; \
        (to)->copyEngineCount = common.copyEngineCount;       \
        (to)->decoderCount = common.decoderCount;             \
        (to)->encoderCount = common.encoderCount;             \
        (to)->jpegCount = common.jpegCount;                   \
        (to)->ofaCount = common.ofaCount;                     \
        (to)->memorySizeMB = common.memorySizeMB;             \
        memcpy((to)->name, name, sizeof(name));               \
    } while (0)

    if (info->version == nvmlGpuInstanceProfileInfo_v3) {
        nvmlGpuInstanceProfileInfo_v3_t *v3 = (nvmlGpuInstanceProfileInfo_v3_t *)info;
        fill(v3);
        v3->capabilities = capabilities;
    } else {
        fill(info);
        info->isP2pSupported = common.isP2pSupported;
    }
#undef fill
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    return profileInfoV(device, profile, 0, info);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int profileId, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    return profileInfoV(device, profileId, 1, info);
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int profileId,
                                                           nvmlGpuInstancePlacement_t *placements, unsigned int *count)
{
    return simDeviceGetGpuInstancePossiblePlacements(device, profileId, placements, count);
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int profileId,
                                                        nvmlGpuInstancePlacement_t *placements, unsigned int *count)
{
    return simDeviceGetGpuInstancePossiblePlacements(device, profileId, placements, count);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int profileId, unsigned int *count)
{
    return simDeviceGetGpuInstanceRemainingCapacity(device, profileId, count);
}

// GPU instances.

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profileId, nvmlGpuInstance_t *instance)
{
    return simDeviceCreateGpuInstance(device, profileId, NULL, instance);
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profileId,
                                                      const nvmlGpuInstancePlacement_t *placement, nvmlGpuInstance_t *instance)
{
    if (placement == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return simDeviceCreateGpuInstance(device, profileId, (nvmlGpuInstancePlacement_t *)placement, instance);
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance) { return simGpuInstanceDestroy(instance); }

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profileId, nvmlGpuInstance_t *instances, unsigned int *count)
{
    return instances == NULL ? NVML_ERROR_INVALID_ARGUMENT : simDeviceGetGpuInstances(device, profileId, instances, count);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance)
{
    return simDeviceGetGpuInstanceById(device, id, instance);
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    return simGpuInstanceGetInfo(instance, info);
}

// Compute instance profiles.

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int profile, unsigned int engines,
                                                          nvmlComputeInstanceProfileInfo_t *info)
{
    char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
    return simGpuInstanceGetComputeInstanceProfileInfo(instance, profile, engines, info, name);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned int profile, unsigned int engines,
                                                           nvmlComputeInstanceProfileInfo_v2_t *info)
{
    nvmlComputeInstanceProfileInfo_t common;
    char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE];

    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != nvmlComputeInstanceProfileInfo_v2 && info->version != nvmlComputeInstanceProfileInfo_v3)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t ret = simGpuInstanceGetComputeInstanceProfileInfo(instance, profile, engines, &common, name);
    if (ret != NVML_SUCCESS)
        return ret;
    // v3 is v2 with one field more at its end.
    info->id = common.id;
    info->sliceCount = common.sliceCount;
    info->instanceCount = common.instanceCount;
    info->multiprocessorCount = common.multiprocessorCount;
    info->sharedCopyEngineCount = common.sharedCopyEngineCount;
    info->sharedDecoderCount = common.sharedDecoderCount;
    info->sharedEncoderCount = common.sharedEncoderCount;
    info->sharedJpegCount = common.sharedJpegCount;
    info->sharedOfaCount = common.sharedOfaCount;
    memcpy(info->name, name, sizeof(name));
    if (info->version == nvmlComputeInstanceProfileInfo_v3)
        ((nvmlComputeInstanceProfileInfo_v3_t *)info)->capabilities = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned int profileId,
                                                                 nvmlComputeInstancePlacement_t *placements, unsigned int *count)
{
    return simGpuInstanceGetComputeInstancePossiblePlacements(instance, profileId, placements, count);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned int profileId, unsigned int *count)
{
    return simGpuInstanceGetComputeInstanceRemainingCapacity(instance, profileId, count);
}

// Compute instances.

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned int profileId, nvmlComputeInstance_t *compute)
{
    return simGpuInstanceCreateComputeInstance(instance, profileId, NULL, compute);
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance, unsigned int profileId,
                                                               const nvmlComputeInstancePlacement_t *placement,
                                                               nvmlComputeInstance_t *compute)
{
    if (placement == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return simGpuInstanceCreateComputeInstance(instance, profileId, (nvmlComputeInstancePlacement_t *)placement, compute);
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute) { return simComputeInstanceDestroy(compute); }

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned int profileId, nvmlComputeInstance_t *found,
                                                unsigned int *count)
{
    return found == NULL ? NVML_ERROR_INVALID_ARGUMENT : simGpuInstanceGetComputeInstances(instance, profileId, found, count);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id, nvmlComputeInstance_t *compute)
{
    return simGpuInstanceGetComputeInstanceById(instance, id, compute);
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info)
{
    return simComputeInstanceGetInfo(compute, info);
}

// The older struct is the beginning of the present one.
nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info)
{
    nvmlComputeInstanceInfo_t full;
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t ret = simComputeInstanceGetInfo(compute, &full);
    if (ret == NVML_SUCCESS)
        memcpy(info, &full, offsetof(nvmlComputeInstanceInfo_t, placement));
    return ret;
}

// Partitions in the guise of GPUs.

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *mig) { return simDeviceIsMigDeviceHandle(device, mig); }
nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) { return simDeviceGetGpuInstanceId(device, id); }
nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id) { return simDeviceGetComputeInstanceId(device, id); }

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    return simDeviceGetMigDeviceHandleByIndex(device, index, mig);
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    return simDeviceGetDeviceHandleFromMigDeviceHandle(mig, device);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    return simDeviceGetAttributes(device, attributes);
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    return simDeviceGetAttributes(device, attributes);
}
