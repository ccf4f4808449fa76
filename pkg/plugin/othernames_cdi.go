// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"

	"github.com/cleave-dra/cleave/pkg/cdi"
)

// as is the service by another name, for what depends on its configuration alone.
func (n *otherNames) as(o *otherName) *service {
	as := &service{config: n.s.config, client: n.s.client}
	as.config.DriverName = o.driver
	return as
}

// staticOf is the CDI spec by which containers of a name's claims get GPUs. What it lacks, claims say that need it.
func (n *otherNames) staticOf(ctx context.Context, hw *hardware, o *otherName) (*cdi.Static, error) {
	path, err := n.as(o).installHook(ctx)
	if err != nil {
		return nil, err
	}
	static, err := n.s.newStatic(hw.Session, o.driver, path, func() {})
	if err != nil {
		return nil, err
	}
	n.say(ctx, o, "spec", static.Refresh(ctx, hw.Session.Node()))
	return static, nil
}
