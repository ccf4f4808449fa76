// SPDX-License-Identifier: Apache-2.0

// Package killtest repeatedly runs a test binary as a process that is killed at one of its steps, to test how the next process
// handles the leftovers of the previous one.
package killtest
