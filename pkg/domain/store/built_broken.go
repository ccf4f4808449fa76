// SPDX-License-Identifier: Apache-2.0

//go:build broken

package store

import "os"

var withoutBootID = os.Getenv("CLEAVE_BROKEN") == "boot"
