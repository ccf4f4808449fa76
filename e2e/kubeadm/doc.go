// SPDX-License-Identifier: Apache-2.0

// Package kubeadm tests deployments/kubeadm and the scheduler's role in the chart with Kubernetes' own code: kubeadm, the decoder of
// kube-scheduler's configuration, and the roles that the API server creates. It is a separate module, because it depends on k8s.io/kubernetes.
package kubeadm
