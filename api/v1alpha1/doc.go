// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds the kinds of API group gpu.cleave.dev: ShareConfig, which a claim or a DeviceClass gives as opaque
// configuration, and NodePolicy, which defines how a node's GPUs are offered. Both are decoded strictly: a silently ignored field
// is worse than a rejected one.
package v1alpha1

// Group and Version of every kind in this package.
const (
	Group   = "gpu.cleave.dev"
	Version = "v1alpha1"
)

// APIVersion is what the apiVersion field of every kind must say.
const APIVersion = Group + "/" + Version
