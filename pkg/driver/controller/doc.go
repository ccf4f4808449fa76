// SPDX-License-Identifier: Apache-2.0

// Package controller is the control loop of a node: it observes hardware, claims, policy and cluster, computes the desired state
// with Desired (what to offer, publish, repair and report), and applies it.
//
// Desired is pure and decides everything. Events only mark aspects as stale (see Loop.Mark); nothing else calls into publishing,
// layouts or recovery. Nothing in the loop waits for the API server: its state comes from informers, and ResourceSlices go to a
// publisher that runs concurrently.
package controller
