// SPDX-License-Identifier: Apache-2.0

// Package resourcepool reads the pools of ResourceSlices as the scheduler's allocator does: which slices count, whether a pool is
// whole and valid, and which taints and counters its devices have. People and schedulers thus see the same pool.
//
// Its source is GatherPools of k8s.io/dynamic-resource-allocation/structured v0.37.2 with the feature gates of Kubernetes 1.37.
//
// The slices of many nodes fit in memory because equal parts are stored once: an Interner does so for informers, a SliceSet for
// those who read all slices to answer one question.
package resourcepool
