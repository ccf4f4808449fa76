// SPDX-License-Identifier: Apache-2.0

// Package domain is the wing of what is true wherever it runs: GPUs and their profiles, policies, the order of devices, the
// slices that a node publishes, and the documents that it keeps. All of it is decided from what is passed in.
//
// It never imports a client of Kubernetes, NVML, or another wing. API types of Kubernetes may enter.
package domain
