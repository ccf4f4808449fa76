// SPDX-License-Identifier: Apache-2.0

// Package allocator is one node as the scheduler allocates its devices: the structured allocator of Kubernetes, what the
// node publishes, and what of it is allocated. Nothing of a cluster is needed.
package allocator
