// SPDX-License-Identifier: Apache-2.0

// Package cli is the common part of the command lines of cleave and cleave-node: exit codes, usage errors, flags from the
// environment, the flags that select a machine's GPUs and policy, and the inspection of a machine.
package cli
