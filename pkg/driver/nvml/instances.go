// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// maxInstanceIDs bounds the IDs of GPU instances: the driver numbers them by placement, from 0 for the whole board to 14
// for the last eighth (open-gpu-kernel-modules 595.45.04, KMIGMGR_MAX_GPU_SWIZZID is 15). It leaves room for larger
// boards; an unused ID costs one call.
const maxInstanceIDs = 32

// noInstances returns gpu.ErrPartitioned if a GPU has any GPU instance, idle ones included: nvml.h documents IN_USE for
// nvmlDeviceSetMigMode only if the GPU cannot be unbound from its clients. It searches by ID and by profile, because the
// driver may know profiles and IDs that this release does not.
func noInstances(mig MIG) error {
	for id := range maxInstanceIDs {
		_, err := mig.GPUInstanceByID(id)
		switch {
		case err == nil:
			return fmt.Errorf("%w: GPU instance %d", gpu.ErrPartitioned, id)
		case errors.Is(err, gpu.ErrNotSupported):
			return nil // MIG mode is off
		case !errors.Is(err, gpu.ErrNotFound) && !errors.Is(err, gpu.ErrInvalidArgument):
			return fmt.Errorf("look for GPU instance %d: %w", id, err)
		}
	}
	for enum := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		p, err := mig.GPUInstanceProfileInfo(enum)
		if errors.Is(err, gpu.ErrNotSupported) || errors.Is(err, gpu.ErrInvalidArgument) {
			continue // the board has no such profile
		}
		if err != nil {
			return fmt.Errorf("read profile %d: %w", enum, err)
		}
		found, err := mig.GPUInstances(p.ID)
		if errors.Is(err, gpu.ErrNotSupported) {
			return nil // MIG mode is off
		}
		if err != nil {
			return fmt.Errorf("list GPU instances of profile %d: %w", p.ID, err)
		}
		if len(found) > 0 {
			return fmt.Errorf("%w: %d GPU instances of profile %d", gpu.ErrPartitioned, len(found), p.ID)
		}
	}
	return nil
}
