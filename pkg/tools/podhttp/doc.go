// SPDX-License-Identifier: Apache-2.0

// Package podhttp reads pages that pods serve, over the API server.
//
// It forwards a port as kubectl port-forward does, without one on this machine. The connection is made by the pod's kubelet in the pod, so
// that no NetworkPolicy or firewall between the API server and the pod is in its way. The API server's proxy of pods would be simpler, and
// NetworkPolicies keep it out.
package podhttp
