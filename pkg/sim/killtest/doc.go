// SPDX-License-Identifier: Apache-2.0

// Package killtest runs a test binary as a process that is killed at one of its steps, again and again, for tests of what the
// next process makes of what the one before has left.
package killtest
