// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package dratestdriver pins the DRA driver with which Kubernetes tests itself.
package dratestdriver

import (
	_ "k8s.io/kubernetes/test/e2e/dra/test-driver"
)
