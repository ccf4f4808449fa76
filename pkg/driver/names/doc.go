// SPDX-License-Identifier: Apache-2.0

// Package names knows under which driver names Cleave has served a node. A change of --driver-name leaves the state of the
// earlier name behind: what is allocated under it stays allocated until its pods have ended.
package names
