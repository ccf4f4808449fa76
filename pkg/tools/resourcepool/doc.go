// SPDX-License-Identifier: Apache-2.0

// Package resourcepool reads the pools of ResourceSlices as the scheduler's allocator does: which slices count, whether a pool
// is whole, and whether it is valid. What people see of a pool, and what schedulers predict of it, rests on one answer.
//
// The source is GatherPools of k8s.io/dynamic-resource-allocation/structured v0.37.2 with the feature gates of Kubernetes 1.37.
package resourcepool
