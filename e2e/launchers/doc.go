// SPDX-License-Identifier: Apache-2.0

// Package launchers runs llm-d's fast model actuation on a node of simulated GPUs, as its manifest among the recipes has it: its own
// controllers, as processes of this machine, and its requester. In place of the launcher with vLLM is a program that acts as one.
package launchers
