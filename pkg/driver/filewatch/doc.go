// SPDX-License-Identifier: Apache-2.0

// Package filewatch watches a file or a directory of files that others change: node policies and CDI specs.
package filewatch
