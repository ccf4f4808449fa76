// SPDX-License-Identifier: Apache-2.0

// Package nodeslices turns an inventory into the ResourceSlices of a node. It is pure: the same inventory gives the same slices,
// byte for byte, in the same order, so that nothing is rewritten unnecessarily.
package nodeslices
