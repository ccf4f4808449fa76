// SPDX-License-Identifier: Apache-2.0

// Package driversession identifies sessions of the GPU driver. A session of a GPU is the time in which its
// partitions can only have been destroyed by someone who uses the driver as we do: it ends with the boot, when the kernel
// module is loaded anew, when the GPU is bound to the driver anew, and when the driver is released so that GPUs can be reset.
// A partition that was created in an earlier session is gone, or was created anew by someone else in the same place: with the
// same GPU instance ID and the same UUID, as the driver derives it from the board and that ID
// (open-gpu-kernel-modules 595.45.04, nvGenerateSmcUuid).
//
// A GPU that is reset behind our back, by a tool that had it open all the time, does not end a session: nothing shows it.
package driversession
