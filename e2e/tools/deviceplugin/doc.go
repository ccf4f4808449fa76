// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package deviceplugin pins NVIDIA's device plugin, from which e2e/migration moves nodes.
package deviceplugin

import (
	_ "github.com/NVIDIA/k8s-device-plugin/cmd/mps-control-daemon"
	_ "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin"
)
