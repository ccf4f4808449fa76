// SPDX-License-Identifier: Apache-2.0

// Package fleet holds a live picture of the GPUs of a cluster. A Source watches the API server and publishes a Snapshot a moment
// after something changed; it only reads. What a node's slices and claims mean, package inspect says.
package fleet
