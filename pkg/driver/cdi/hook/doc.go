// SPDX-License-Identifier: Apache-2.0

// Package hook embeds the hook programs that CDI specs name and installs them where container runtimes can run them.
// Embedding guarantees that the spec and its hooks belong to the same release.
package hook
