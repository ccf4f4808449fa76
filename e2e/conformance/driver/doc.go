// SPDX-License-Identifier: Apache-2.0

// Package driver is a DRA driver as the kubelet and the container runtime see it: its registration socket, its gRPC
// services, and its CDI specs.
package driver
