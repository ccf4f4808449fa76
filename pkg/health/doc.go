// SPDX-License-Identifier: Apache-2.0

// Package health tells which GPUs of a node are in trouble: what drivers report, and what GPUs answer when they are
// asked, becomes conditions, and these end when the GPU is well again.
//
// The invariant: a condition ends only by what shows that it is over, never because something lesser happened after it.
// Nothing is kept on disk. What a driver still knows of a GPU is read again at start, so a restart loses no more than
// what nobody but the plugin knew.
package health
