// SPDX-License-Identifier: Apache-2.0

// Package domain is the wing of environment-independent logic: GPUs and their profiles, policies, the order of devices, the slices
// that a node publishes, and the documents that it keeps. All of it depends only on its arguments.
//
// It never imports a client of Kubernetes, NVML, or another wing. API types of Kubernetes may enter.
package domain
