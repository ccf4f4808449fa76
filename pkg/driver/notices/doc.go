// SPDX-License-Identifier: Apache-2.0

// Package notices learns that a node's machine is about to be taken away or restarted, from the metadata services of clouds and from
// what their handlers write on the Node, and decides what to do about it. Learn and Decide are pure; Watcher asks the sources.
package notices
