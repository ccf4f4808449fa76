// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a real one-node Kubernetes on this machine, with
// nothing but processes: etcd, containerd, the control plane and a kubelet,
// all built from Go modules. No containers, virtual machines or downloads of
// binaries are needed.
//
// Everything a cluster owns lies below one directory (Options.Dir): data,
// certificates, sockets, logs, pod volumes. Its processes outlive the program
// that started them, so that a person or another program can use the cluster
// (Open). Each of them carries the directory in its environment, which is how
// Down finds what is left of a cluster, whatever interrupted it, and how it
// never touches a process that belongs to another user.
//
// Invariant: after Down, no process and no mount of the cluster is left.
package cluster
