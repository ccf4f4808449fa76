// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package kueue pins the Kueue that e2e/queues runs.
package kueue

import _ "sigs.k8s.io/kueue/cmd/kueue"
