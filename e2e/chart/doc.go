// SPDX-License-Identifier: Apache-2.0

// Package chart tests the Helm chart: rendered in many ways, and, with CLEAVE_E2E=1, installed into a local Kubernetes
// where everything runs in pods.
package chart
