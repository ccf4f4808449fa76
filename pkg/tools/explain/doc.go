// SPDX-License-Identifier: Apache-2.0

// Package explain finds out why claims fit no node: it runs the scheduler's allocator on ResourceSlices and allocated claims,
// and names what refuses each device of each node. It is pure: callers read the objects and print the Explanation.
package explain
