// SPDX-License-Identifier: Apache-2.0

// Package gpupacking is GPUPacking, a plugin of kube-scheduler that chooses nodes by how well their GPUs stay packed.
//
// It predicts what the allocator would take on each node (packages packing and pools) and narrows the search to the few best
// nodes, so that the allocator runs on those alone. It allocates nothing: on the nodes that are left, the in-tree plugin
// DynamicResources decides, and a pod for which none of them will do sees all nodes at its next attempt. What it cannot
// predict, and what is not for GPUs, passes through untouched.
//
// Factory is for k8s.io/kubernetes/cmd/kube-scheduler/app.WithPlugin. The plugin must be the first of the PostFilter plugins,
// and its Reserve must come after that of DynamicResources, which the multiPoint list does (docs/scheduler.md).
package gpupacking
