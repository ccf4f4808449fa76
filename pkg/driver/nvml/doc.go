// SPDX-License-Identifier: Apache-2.0

// Package nvml reads and changes GPUs through NVIDIA's management library and converts the results to the types of
// pkg/domain/gpu. It is the only package that imports go-nvml, so an nvml.Return becomes an error here and nowhere else.
//
// Data flows through three layers: libnvidia-ml.so.1 -> Library (one method per NVML function) -> Session (pkg/domain/gpu
// types). The engine of a simulated node implements Library too, so everything above it runs the same code on either.
package nvml
