// SPDX-License-Identifier: Apache-2.0

// Package commands is the command line of cleave, the program for people, also as a plugin of kubectl.
package commands
