// SPDX-License-Identifier: Apache-2.0

// Package golden compares what tests get with files, which go test -update writes anew. Tests alone import it.
package golden
