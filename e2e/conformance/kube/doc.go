// SPDX-License-Identifier: Apache-2.0

// Package kube is what the suite does in the API server: a namespace of its own, claims allocated as the scheduler would
// allocate them but for no pod, and the driver's ResourceSlices.
package kube
