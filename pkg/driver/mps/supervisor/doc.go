// SPDX-License-Identifier: Apache-2.0

// Package supervisor runs one MPS control daemon per GPU for as long as claims use it.
//
// Everything it does to a node is on record before it is done: claims, the compute mode the GPU had, the daemon's
// process. Killed at any step and started again, it adopts a daemon that answers and keeps its claims, or undoes what a
// start had done. Daemons are sessions of their own, in a mount namespace of their own and, where the admin names one, in
// a cgroup of their own, so that they outlive it.
//
// Each GPU has a state with a lock of its own. GPUs never wait for each other.
package supervisor
