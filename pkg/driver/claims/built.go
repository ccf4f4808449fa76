// SPDX-License-Identifier: Apache-2.0

//go:build !broken

package claims

// What a build of the tag broken can leave out, see e2e/history/broken. In all others these are constants, and the compiler
// removes what depends on them.
const (
	// withoutLocks: GPUs are not locked.
	withoutLocks = false
	// recordsLate: a change of the hardware is recorded after it, and not before.
	recordsLate = false
)
