// SPDX-License-Identifier: Apache-2.0

// Package operator has NVIDIA's GPU operator upgrade the driver of three nodes whose GPUs pods have by claims of Cleave. The operator's
// own library upgrades, by a ClusterPolicy; what stands in for the driver's pods and for k8s-driver-manager is of this package.
package operator
