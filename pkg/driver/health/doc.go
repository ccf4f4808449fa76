// SPDX-License-Identifier: Apache-2.0

// Package health reports which GPUs of a node are unhealthy. It converts driver events and the results of polls into
// conditions, which end when the GPU recovers.
//
// The invariant: a condition ends only on evidence that it is over, never because a lesser error follows it. Nothing is stored on
// disk: a restart rereads the driver's state of a GPU, and loses only the plugin's own.
package health
