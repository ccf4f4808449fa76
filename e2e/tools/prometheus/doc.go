// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package prometheus pins the Prometheus that tests the chart's dashboard, and the promtool that tests its alerts. Both are built with
// the tag remove_all_sd, and go.mod has what such a build needs.
package prometheus

import (
	_ "github.com/prometheus/prometheus/cmd/prometheus"
	_ "github.com/prometheus/prometheus/cmd/promtool"
)
