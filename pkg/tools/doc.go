// SPDX-License-Identifier: Apache-2.0

// Package tools is the wing of what people and the API server use: pictures of nodes and clusters, explanations, checks,
// imports, simulations.
//
// It never imports the driver, the scheduler, or the simulator: tools know a node by what it publishes.
package tools
