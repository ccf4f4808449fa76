// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package dracpu pins the DRA driver for CPUs that e2e/aligned runs.
package dracpu

import _ "github.com/kubernetes-sigs/dra-driver-cpu/cmd/dracpu"
