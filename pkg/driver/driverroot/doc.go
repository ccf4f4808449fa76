// SPDX-License-Identifier: Apache-2.0

// Package driverroot finds the device nodes, programs and libraries below the root of an NVIDIA driver, and runs those
// programs.
package driverroot
