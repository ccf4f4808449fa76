// What the Go and the C half of the library share.
#ifndef CLEAVE_NVML_SIM_H
#define CLEAVE_NVML_SIM_H

#include <stddef.h>

// Which string simSystemString returns.
enum { SIM_DRIVER_VERSION, SIM_NVML_VERSION };

// Which number simDeviceNumber returns.
enum {
    SIM_MINOR,
    SIM_MODULE,
    SIM_BRAND,
    SIM_ARCHITECTURE,
    SIM_NUMA_NODE,
    SIM_VIRTUALIZATION,
    SIM_POWER,
    SIM_POWER_LIMIT,
    SIM_TEMPERATURE,
    SIM_ADDRESSING_MODE,
    SIM_MAX_MIG_DEVICES,
    SIM_PERSISTENCE_MODE,
    SIM_PCIE_GENERATION,
    SIM_PCIE_MAX_GENERATION,
    SIM_PCIE_WIDTH,
    SIM_PCIE_MAX_WIDTH,
};

// simRoot returns the root of the node, to be freed, or NULL.
char *simRoot(void);

// simReserve reserves addresses that hold nothing, or returns NULL.
void *simReserve(size_t size);

// simReturnSignal gives the host back the signal that this library's runtime took.
void simReturnSignal(void);

#endif
