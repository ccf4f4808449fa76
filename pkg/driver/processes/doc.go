// SPDX-License-Identifier: Apache-2.0

// Package processes finds the processes of pods on this node.
//
// A force-deleted pod vanishes from the API server while its containers may still run. The driver lists only processes
// with a context on a GPU, so it does not show a process before its first context or between two.
package processes
