// SPDX-License-Identifier: Apache-2.0

// Package driver is the wing of what runs on a node, with its privileges: the kubelet's plugin, the control loop, claims, the
// GPUs' driver, and the MPS supervisor.
//
// It never imports tools for people, the scheduler, or the simulator: every line here may run as root on every node.
package driver
