// SPDX-License-Identifier: Apache-2.0

// Package counting knows what releases of Kubernetes count of the devices of a GPU: the counters through which they exclude each other,
// and the shares that several claims have of one.
package counting
