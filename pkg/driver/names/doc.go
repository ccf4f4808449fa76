// SPDX-License-Identifier: Apache-2.0

// Package names finds the driver names under which Cleave has served a node. Changing --driver-name leaves the state of the
// earlier name behind: its allocations remain until their pods have ended.
package names
