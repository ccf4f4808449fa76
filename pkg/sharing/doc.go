// SPDX-License-Identifier: Apache-2.0

// Package sharing has the names by which pkg/plugin knows what pkg/mps shares GPUs with.
package sharing
