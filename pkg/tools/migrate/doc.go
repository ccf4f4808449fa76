// SPDX-License-Identifier: Apache-2.0

// Package migrate reads the files with which a node's GPUs are set up for NVIDIA's device plugin and MIG manager, and makes
// node policies and DeviceClasses of them under which existing pods run. What has no equivalent is listed, never dropped.
//
// The formats are those of NVIDIA/k8s-device-plugin, api/config/v1, and of NVIDIA/mig-parted, api/spec/v1.
package migrate
