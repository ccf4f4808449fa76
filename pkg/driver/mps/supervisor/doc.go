// SPDX-License-Identifier: Apache-2.0

// Package supervisor runs one MPS control daemon per GPU for as long as claims use it.
//
// Every change of a node is recorded before it is made: claims, the GPU's previous compute mode, the daemon's process. Killed at
// any step and restarted, it adopts a daemon that answers and keeps its claims, or undoes an unfinished start. Daemons outlive it:
// each has its own session and mount namespace and, if configured, its own cgroup.
//
// Each GPU has its own state and lock, so GPUs never wait for each other.
package supervisor
