// SPDX-License-Identifier: Apache-2.0

// Package cli is the command line of cleave: flags, environment, output and exit codes.
package cli
