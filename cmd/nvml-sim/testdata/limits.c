// Calls the simulated library as a program does that limits memory by cgroup, and prints each return code.
// Usage: limits LIBRARY CGROUP

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <dlfcn.h>
#include <stdio.h>

#include <nvml.h>

static void *library;

#define call(name, type, ...) ((nvmlReturn_t(*) type)dlsym(library, #name))(__VA_ARGS__)

static void set(nvmlDevice_t device, const char *cgroup, unsigned long long soft, unsigned long long hard)
{
    nvmlSetMemoryLimits_v1_t limits = {cgroup, soft, hard};
    printf("set %d\n", call(nvmlDeviceSetMemoryLimits_v1, (nvmlDevice_t, nvmlSetMemoryLimits_v1_t *), device, &limits));
}

static void get(nvmlDevice_t device, const char *cgroup)
{
    nvmlGetMemoryLimits_v1_t limits = {cgroup, 0, 0, 7};
    nvmlReturn_t result = call(nvmlDeviceGetMemoryLimits_v1, (nvmlDevice_t, nvmlGetMemoryLimits_v1_t *), device, &limits);
    printf("get %d %llu %llu %llu\n", result, limits.softLimit, limits.hardLimit, limits.currentUsed);
}

static void mode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
    nvmlReturn_t set = call(nvmlDeviceSetComputeMode, (nvmlDevice_t, nvmlComputeMode_t), device, mode);
    nvmlComputeMode_t now = 9;
    nvmlReturn_t got = call(nvmlDeviceGetComputeMode, (nvmlDevice_t, nvmlComputeMode_t *), device, &now);
    printf("mode %d %d %d\n", set, got, now);
}

int main(int argc, char **argv)
{
    if (argc != 3 || (library = dlopen(argv[1], RTLD_NOW)) == NULL)
        return 1;
    nvmlDevice_t device, parent, part;
    if (call(nvmlInit_v2, (void)) != NVML_SUCCESS ||
        call(nvmlDeviceGetHandleByIndex_v2, (unsigned int, nvmlDevice_t *), 0, &device) != NVML_SUCCESS ||
        call(nvmlDeviceGetHandleByIndex_v2, (unsigned int, nvmlDevice_t *), 1, &parent) != NVML_SUCCESS ||
        call(nvmlDeviceGetMigDeviceHandleByIndex, (nvmlDevice_t, unsigned int, nvmlDevice_t *), parent, 0, &part) != NVML_SUCCESS)
        return 2;

    get(device, argv[2]);
    set(device, argv[2], 3, 2);
    set(device, "/nowhere/at/all", 1, 2);
    set(device, NULL, 1, 2);
    set(device, argv[2], 1073741824, 2147483648);
    get(device, argv[2]);
    set(part, argv[2], 1, 2);
    get(part, argv[2]);
    mode(device, NVML_COMPUTEMODE_EXCLUSIVE_PROCESS);
    mode(parent, NVML_COMPUTEMODE_EXCLUSIVE_PROCESS);
    mode(part, NVML_COMPUTEMODE_EXCLUSIVE_PROCESS);
    return 0;
}
