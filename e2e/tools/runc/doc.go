// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package runc pins the container runtime that the local node runs: Debian 12's cannot run pods with user namespaces.
package runc

import (
	_ "github.com/opencontainers/runc"
)
