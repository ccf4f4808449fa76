// SPDX-License-Identifier: Apache-2.0

// Package policy turns a NodePolicy into the offer of each GPU of a node. Except for Load, it is pure.
package policy
