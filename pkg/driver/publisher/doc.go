// SPDX-License-Identifier: Apache-2.0

// Package publisher writes the slices of a node to the API server, one change at a time, and restores those that others delete.
package publisher
