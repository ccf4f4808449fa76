// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a real Kubernetes on this machine, with nothing but
// processes: etcd, containerd, the control plane and a kubelet, all built from
// Go modules. No containers, virtual machines or downloads of binaries are
// needed.
//
// The one node is this machine itself. Each of several (Options.Nodes) has a
// kubelet and a containerd in namespaces of its own, so that it has its own
// host name, network, processes and mounts, and can be lost as a whole (Node).
//
// Everything a cluster owns lies below one directory (Options.Dir): data,
// certificates, sockets, logs, pod volumes. Its processes outlive the program
// that started them, so that a person or another program can use the cluster
// (Open). Each of them carries the directory in its environment, which is how
// Down finds what is left of a cluster, whatever interrupted it, and how it
// never touches a process that belongs to another user.
//
// Invariant: after Down, no process, mount or network link of the cluster is
// left.
package cluster
