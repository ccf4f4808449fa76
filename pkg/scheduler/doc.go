// SPDX-License-Identifier: Apache-2.0

// Package scheduler is the wing of cleave-scheduler: the plugin that packs GPUs, for kube-scheduler.
//
// It never imports the driver or the simulator, and of the tools the reader of pools alone.
package scheduler
