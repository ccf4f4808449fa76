// SPDX-License-Identifier: Apache-2.0

// Package suggest finds the names that misspelled ones were meant for.
package suggest
