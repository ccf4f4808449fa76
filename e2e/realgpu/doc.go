// SPDX-License-Identifier: Apache-2.0

// Package realgpu has tests of Cleave on a real Kubernetes node with a real GPU: the chart, pods, MPS shares, restarts and
// removal, with CUDA programs in the pods. They change no setting of the GPU. CLEAVE_GPU=1 runs them (docs/hardware.md).
package realgpu
