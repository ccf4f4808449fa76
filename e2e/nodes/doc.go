// SPDX-License-Identifier: Apache-2.0

// Package nodes tests Cleave on a local Kubernetes of three nodes, each with a kubelet, a containerd and GPUs of its own,
// where the Helm chart installs everything as pods. It needs CLEAVE_E2E=1.
package nodes
