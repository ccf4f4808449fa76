// SPDX-License-Identifier: Apache-2.0

//go:build !broken

package store

// withoutBootID: all boots are the same. Only a build of the tag broken can be so, see e2e/history/broken.
const withoutBootID = false
