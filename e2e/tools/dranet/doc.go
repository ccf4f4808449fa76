// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package dranet pins the DRA driver for network interfaces that e2e/aligned runs.
package dranet

import _ "sigs.k8s.io/dranet/cmd/dranet"
