// SPDX-License-Identifier: Apache-2.0

//go:build broken

package claims

import "os"

var (
	withoutLocks = os.Getenv("CLEAVE_BROKEN") == "locks"
	recordsLate  = os.Getenv("CLEAVE_BROKEN") == "record"
)
