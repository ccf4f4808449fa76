// SPDX-License-Identifier: Apache-2.0

// Package migration tests that nodes move from NVIDIA's device plugin to Cleave and back, by the steps of docs/migrate.md. It needs
// CLEAVE_E2E=1.
//
// The device plugin and its MPS daemon are the real programs, on simulated GPUs. What the MIG manager and GPU feature discovery leave on
// a node is made by the test, and the GPU operator is as much of it as the commands of docs/migrate.md read: a ConfigMap, a ClusterPolicy,
// and DaemonSets with the operator's node selectors.
package migration
