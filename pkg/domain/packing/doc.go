// SPDX-License-Identifier: Apache-2.0

// Package packing is the order in which devices are offered, which is the packing algorithm, and the measure of how well
// nodes are packed. It is pure.
//
// On a node the scheduler takes the first devices that fit, so the order (OrderShapes) decides where claims land. The choice of a
// node is left to scoring, which compares nodes: a Model is a node's published devices, a State its allocations, Fit the
// allocator's choice there, Cost the loss of later claims by that choice, and Fragmentation the distance of a set of nodes from
// being well packed. The scheduler's plugin, simulations and advice use the same measure. Package pools builds models and states
// from Kubernetes objects.
package packing
