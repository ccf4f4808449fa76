// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"

	"github.com/cleave-dra/cleave/pkg/driver/nvml"
)

// NVML is the Hardware behind the driver's library.
type NVML struct {
	Options nvml.Options
}

// Open starts a session, which opens only the requested GPUs: others may be about to be reset.
func (n NVML) Open(ctx context.Context) (GPUs, error) {
	session, err := nvml.OpenDirect(ctx, n.Options)
	if err != nil {
		return nil, err
	}
	return session, nil
}
