// SPDX-License-Identifier: Apache-2.0

// Package gpulane tries Cleave on a machine with a real GPU: discovery, CDI specs, and what limits of MPS are worth.
//
// It is for machines that are lent for minutes and have neither Go nor a network: `make gpu-lane` builds one directory that
// is carried there. It changes nothing of a GPU that outlives it (docs/hardware.md), and where something is missing it
// says so and passes over what needs it.
//
// What is compared with Cleave comes from elsewhere: from C programs that load the driver's libraries themselves, and
// from nvidia-smi.
package gpulane
