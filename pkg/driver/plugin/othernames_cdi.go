// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"

	"github.com/cleave-dra/cleave/pkg/driver/cdi"
)

// staticOf is the CDI spec by which containers of a name's claims get GPUs. What it lacks, claims say that need it.
func (n *otherNames) staticOf(ctx context.Context, hw *hardware, o *otherName) (*cdi.Static, error) {
	config := n.s.config
	config.DriverName = o.driver
	path, err := installHook(ctx, &config)
	if err != nil {
		return nil, err
	}
	static, err := newStatic(n.s, hw.DriverRoot(), o.driver, path, func() {})
	if err != nil {
		return nil, err
	}
	n.log(ctx, o, "spec", static.Refresh(ctx, hw.Session.Node()))
	return static, nil
}
