// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package containerd pins the container runtime that the local node runs.
package containerd

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/v2/cmd/ctr"
)
