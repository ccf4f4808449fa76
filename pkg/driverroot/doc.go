// SPDX-License-Identifier: Apache-2.0

// Package driverroot knows what lies below the root of an NVIDIA driver's files: its device nodes and its programs, and
// how those programs run.
package driverroot
