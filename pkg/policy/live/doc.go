// SPDX-License-Identifier: Apache-2.0

// Package live has the names by which pkg/plugin knows the active policy of pkg/policy.
package live
