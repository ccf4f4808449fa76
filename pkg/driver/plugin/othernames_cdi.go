// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/driver/cdi"
)

// staticOf returns the CDI spec for claims of a driver name. Claims that need missing parts of it report them.
func staticOf(ctx context.Context, s *service, hw *hardware, driver string) (*cdi.Static, error) {
	config := s.config
	config.DriverName = driver
	path, err := installHook(ctx, &config)
	if err != nil {
		return nil, err
	}
	static, err := newStatic(s, hw.DriverRoot(), driver, path, func() {})
	if err != nil {
		return nil, err
	}
	if err := static.Refresh(ctx, hw.Session.Node()); err != nil {
		klog.FromContext(ctx).Error(err, "The CDI spec of another driver name is incomplete", "driver", driver)
	}
	return static, nil
}
