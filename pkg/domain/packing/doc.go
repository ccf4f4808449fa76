// SPDX-License-Identifier: Apache-2.0

// Package packing is the order in which devices are offered, which is the packing algorithm, and the measure of how well
// nodes are packed. It is pure.
//
// On a node the scheduler takes the first devices that fit, so the order (OrderShapes) decides where claims land. Among
// nodes it takes whichever it is told to, so something has to compare them: a Model is what a node publishes, a State what
// of it is allocated, Fit what the allocator would choose there, Cost what that choice takes from later claims, and
// Fragmentation how far a set of nodes is from being well packed. The scheduler's plugin, simulations and advice use the
// same measure. Package pools makes it of Kubernetes objects.
package packing
