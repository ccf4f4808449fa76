// SPDX-License-Identifier: Apache-2.0

// Package driversession identifies sessions of the GPU driver. A session of a GPU is the time in which only other users of the
// driver can have destroyed its partitions: it ends with the boot, when the kernel module is reloaded, when the GPU is rebound to
// the driver, and when the driver is released so that GPUs can be reset. A partition created in an earlier session is gone, or was
// recreated by someone else in the same place: with the same GPU instance ID and the same UUID, as the driver derives it from the
// board and that ID (open-gpu-kernel-modules 595.45.04, nvGenerateSmcUuid).
//
// A GPU reset behind our back, by a tool that kept it open, does not end a session: it is undetectable.
package driversession
