// SPDX-License-Identifier: Apache-2.0

// Package plugin is the process that the kubelet calls: it wires hardware, claims, CDI, publishing and the control loop
// together, serves metrics and health, and implements kubeletplugin.DRAPlugin. Allocation decisions are made elsewhere.
package plugin
