// SPDX-License-Identifier: Apache-2.0

// Package policy turns a NodePolicy into what each GPU of a node offers. It is pure but for Load.
package policy
