// SPDX-License-Identifier: Apache-2.0

// Package pools makes the packing's measure of Kubernetes objects: models and states of a node's ResourceSlices and
// allocations, requests of claims and DeviceClasses, holders of the pods that can be evicted.
//
// A Cache makes Nodes of slices and Requests of Demands. It shares models between nodes that publish the same, and evaluates
// a selector once for all devices that are equal in the attributes it names. What it cannot predict exactly it refuses:
// ErrIncomplete for pools, ErrUnpredictable for claims. The allocator then decides as if there were no measure.
package pools
