// What the Go and the C half of the library share.
#ifndef CLEAVE_NVML_SIM_H
#define CLEAVE_NVML_SIM_H

#include <stddef.h>

// simRoot returns the root of the node, to be freed, or NULL.
char *simRoot(void);

// simReserve reserves addresses that hold nothing, or returns NULL.
void *simReserve(size_t size);

// simReturnSignal gives the host back the signal that this library's runtime took.
void simReturnSignal(void);

#endif
