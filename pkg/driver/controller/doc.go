// SPDX-License-Identifier: Apache-2.0

// Package controller is the control loop of a node: it observes hardware, claims, policy and cluster, computes with Desired what is to
// be offered, published, repaired and reported, and applies that.
//
// Desired is pure and decides everything. Events only mark what to observe anew (see Loop.Mark); nothing else calls into
// publishing, layouts or recovery. Nothing in the loop waits for the API server: its state comes from informers, and
// ResourceSlices are handed to a publisher that works alongside.
package controller
