// SPDX-License-Identifier: Apache-2.0

// Package soak keeps a node of a local cluster under fire: pods of all tiers come and go while the programs that a claim
// depends on are killed, stopped, cut off and upgraded, GPUs fail, and the node reboots. After every fault the node has to
// serve claims again, and in the end nothing may be left of them.
//
// A seed determines the faults and the pods, and the order of each: [Plan]. When they happen depends on how fast the machine
// is.
package soak
