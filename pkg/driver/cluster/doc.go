// SPDX-License-Identifier: Apache-2.0

// Package cluster holds this node's state in the API server: its labels, the device plugins and DRA drivers that serve it, the
// node's own ResourceSlices, the claims that exist and which features the API server has. It also writes Events.
package cluster
