// SPDX-License-Identifier: Apache-2.0

// Package nvml reads GPUs through NVIDIA's management library and turns what it says into the types of pkg/gpu.
// It is the only package that imports go-nvml, so an nvml.Return becomes an error here once and nowhere else.
//
// Data flows in three layers: libnvidia-ml.so.1 -> Library (one method per NVML function) -> Discover (pkg/gpu types).
// A simulated node's engine implements Library too, so everything above it runs the same code on either.
package nvml
