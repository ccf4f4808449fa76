// SPDX-License-Identifier: Apache-2.0

// Package nodelabels describes the GPUs of a node by labels of its Node object, in the names and formats of NVIDIA's GPU feature
// discovery (k8s-device-plugin v0.20.0, internal/lm). Equal inventories and offers give equal labels.
package nodelabels
