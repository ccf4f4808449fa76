// SPDX-License-Identifier: Apache-2.0

// Package inspect describes a node's GPUs: offers, allocations and topology. It builds a View from the state of a machine
// (OfMachine) or from API objects (OfPool). The package is pure: callers do the reading.
package inspect
