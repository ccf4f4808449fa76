// SPDX-License-Identifier: Apache-2.0

// Package plugin is the process that the kubelet talks to: it wires hardware, claims, CDI, publishing and the control loop
// together, serves metrics and health, and implements kubeletplugin.DRAPlugin. What a claim gets is decided elsewhere.
package plugin
