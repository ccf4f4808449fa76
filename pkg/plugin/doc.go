// SPDX-License-Identifier: Apache-2.0

// Package plugin is the plugin that the kubelet talks to: it wires hardware, claims, CDI and publishing together and
// speaks kubeletplugin.DRAPlugin. What a claim gets is decided elsewhere.
package plugin
