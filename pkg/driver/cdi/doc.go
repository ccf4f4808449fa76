// SPDX-License-Identifier: Apache-2.0

// Package cdi writes the container device specs that turn an allocated device into device nodes, libraries and hooks
// inside a container.
//
// One static spec per node contains the driver's files for every container, and one device per GPU. A whole GPU needs no more, so
// preparing one writes no spec: runtimes parse every spec in the directory at each change.
package cdi
