// SPDX-License-Identifier: Apache-2.0

// Package commands is the command line of cleave-node, the program of the DaemonSets and the webhook.
package commands
