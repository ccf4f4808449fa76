// SPDX-License-Identifier: Apache-2.0

// Package repacking takes the steps that package repack advises: it evicts one pod after the other, and waits for its replacement.
//
// What to do next is decided by pure functions from what was seen. There is no file: whoever goes on after an interruption plans anew
// from the cluster. The only mark is a taint on nodes that replacements are to leave, which the next run takes away.
package repacking
