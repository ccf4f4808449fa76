// SPDX-License-Identifier: Apache-2.0

// Package history records what happens to the GPUs of a node, and checks it: which devices the API server allocates, what
// the kubelet asks of the plugin, how the simulated hardware changes, when containers start and end. All of it has one
// clock, so that one event can be said to be before another whoever reported it.
//
// A [Recorder] writes events to a file as they come, one JSON document per line, and keeps none in memory. [Read] reads such
// a file, [Check] says what in it must not have happened, and needs nothing but the events: a history that was recorded once
// can be checked again.
package history
